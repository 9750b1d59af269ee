"""A model is cut into fragments that cover it once, and a state outlives another cut and another algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import MisuseError
from integrations.volatile import A2CiD2, AsyncDiLoCo, DiLoCo, LocalSGD, StreamingDiLoCo, strided
from integrations.volatile.algorithm import Algorithm, GlobalAlgorithm
from integrations.volatile.fragments import Fragment, balanced, cut, digest_of, trainable


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(6)]).to(dtype)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_balanced_bins_hold_each_size_once_and_differ_by_one_size_at_most(sizes: list[int], count: int) -> None:
    bins = balanced(sizes, count)
    assert sorted(place for one in bins for place in one) == list(range(len(sizes)))
    filled = [sum(sizes[place] for place in one) for one in bins]
    assert max(filled) - min(filled) <= max(sizes)
    assert all(bins) or len(sizes) < count


def test_strides_take_layers_of_all_depths_and_what_is_in_no_layer_is_a_fragment_of_its_own() -> None:
    network, head = model(), torch.nn.Linear(8, 3)
    layers = list(network)
    everything = [*network.parameters(), *head.parameters()]
    first, second, third, rest = cut(everything, strided(layers, 3))
    assert first.parameters == (*layers[0].parameters(), *layers[3].parameters())
    assert (second.elems, third.elems) == (first.elems, first.elems)
    assert rest.parameters == tuple(head.parameters())


@pytest.mark.parametrize("count", [0, 13])
def test_a_model_is_not_cut_into_more_fragments_than_it_has_tensors(count: int) -> None:
    with pytest.raises(MisuseError, match="12 tensors cannot be cut"):
        cut(list(model().parameters()), count)


def test_a_parameter_is_in_one_fragment_alone() -> None:
    everything = list(model().parameters())
    with pytest.raises(MisuseError, match="names a parameter twice"):
        cut(everything, [everything[:2], everything[1:3]])


def test_parameters_that_float32_does_not_hold_are_refused() -> None:
    with pytest.raises(
        MisuseError, match="DiLoCo trains parameters of float32, bfloat16 and float16, and found one of"
    ):
        DiLoCo(model(torch.float64).parameters())
    with pytest.raises(MisuseError, match="found none"):
        trainable([], user="DiLoCo")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_read_is_what_was_written_rounded_to_the_parameters_dtype(dtype: torch.dtype) -> None:
    fragment = Fragment(list(model(dtype).parameters()))
    values = torch.randn(fragment.elems)
    fragment.write(values)
    assert torch.equal(fragment.read(), fragment.rounded(values))
    assert torch.equal(fragment.rounded(values), values.to(dtype).to(torch.float32))


def test_a_parameter_without_a_gradient_counts_as_one_of_zeros() -> None:
    network = model()
    fragment = Fragment(list(network.parameters()))
    network[0](torch.ones(8)).sum().backward()
    gradients = fragment.read_gradients()
    assert gradients[:64].any()
    assert not gradients[72:].any()
    has = [True] * len(fragment.parameters)
    fragment.write_gradients(gradients + 1.0, has=has)
    assert torch.equal(fragment.read_gradients(), gradients + 1.0)
    fragment.write_gradients(gradients + 1.0, has=[False, *has[1:]])
    assert fragment.parameters[0].grad is None


ALGORITHMS = {
    "DiLoCo": lambda parameters: DiLoCo(parameters),
    "LocalSGD": lambda parameters: LocalSGD(parameters),
    "StreamingDiLoCo": lambda parameters: StreamingDiLoCo(parameters, every=30, fragments=3),
    "AsyncDiLoCo": lambda parameters: AsyncDiLoCo(parameters, every=20, fragments=5),
}


@pytest.mark.parametrize("after", ALGORITHMS)
@pytest.mark.parametrize("before", ALGORITHMS)
def test_a_checkpoint_goes_on_under_another_algorithm_and_another_cut(before: str, after: str) -> None:
    first: GlobalAlgorithm = ALGORITHMS[before](model().parameters())
    state = first.state_dict()
    state |= {"global": torch.randn_like(state["global"]), "buffer": torch.randn_like(state["global"])}
    network = model()
    second: GlobalAlgorithm = ALGORITHMS[after](network.parameters())
    second.load_state_dict(state)
    again = second.state_dict()
    assert all(torch.equal(again[name], state[name]) for name in ("global", "buffer"))
    assert torch.equal(Fragment(list(network.parameters())).read(), state["global"])


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), A2CiD2])
def test_a_checkpoint_of_another_model_is_refused(algorithm: type) -> None:
    state = algorithm(model().parameters()).state_dict()
    with pytest.raises(MisuseError, match="of another model"):
        algorithm(list(model().parameters())[:-1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 10, "fragments": 4}, "every is 10: it is a positive multiple of the 4 fragments"),
        ({"every": 0}, "every is 0"),
        ({"every": 20, "overlap": 6}, "overlap is 6: a fragment leaves every 5 steps"),
        ({"overlap": -1}, "overlap is -1"),
        ({"alpha": 1.5}, "alpha is 1.5"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(MisuseError, match=text):
        StreamingDiLoCo(model().parameters(), **options)


NO_NUMBER: Any = "3"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda network: DiLoCo(network, every=3), r"takes `model.parameters\(\)`, and was given a Sequential"),
        (lambda network: DiLoCo(network.named_parameters()), "and was given a tuple"),
        (lambda network: DiLoCo(network.parameters(), every=NO_NUMBER), "every is '3': it is a whole number"),
        (lambda network: DiLoCo(network.parameters(), every=0), "every is 0: it is a whole number, at least 1"),
        (lambda network: A2CiD2(network.parameters(), every=NO_NUMBER), "every is '3'"),
    ],
)
def test_wrong_arguments_are_named(wrong: Callable[[torch.nn.Module], Algorithm], reason: str) -> None:
    with pytest.raises(MisuseError, match=reason):
        wrong(model())


def test_models_are_told_apart_by_frozen_parameters_of_any_layout() -> None:
    eye = torch.eye(4)
    odd = [
        eye.diagonal(),
        eye[:, 0].expand(3, 4),
        eye.to_sparse(),
        torch.ones(2, device="meta"),
        eye.to(torch.complex64).conj(),
    ]
    digests = [digest_of([one], values=True) for one in odd]
    assert len(set(digests)) == len(odd)
    assert digest_of([eye.diagonal()], values=True) == digest_of([torch.ones(4)], values=True)
    assert digest_of([torch.zeros(4)], values=True) != digests[0]
