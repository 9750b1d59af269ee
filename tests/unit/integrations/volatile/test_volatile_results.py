"""A member that catches up does with a step's result what the others did. A caller's own step is nothing to it."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch

from integrations.volatile import A2CiD2, AsyncDiLoCo, DiLoCo, PartialMean, StreamingDiLoCo
from integrations.volatile.algorithm import Algorithm
from transport.volatile.group import VolatileGroup
from transport.volatile.steps import Committed

ELEMS = 12


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(ELEMS))


def take(algorithm: Algorithm, *tensors: list[float], weight: float | list[float] | None = None) -> None:
    """A step's result, with the mean of weights where there is one, and of what else is said."""
    data = [memoryview(np.asarray(one, np.float32).tobytes()) for one in tensors]
    weights = [] if weight is None else [memoryview(np.asarray(weight, np.float64).tobytes())]
    algorithm._take_result(1, [*data, *weights])


def test_results_of_diloco_are_means_and_those_of_streaming_gradients() -> None:
    plain: dict[str, Any] = {"outer_rate": 1.0, "outer_momentum": 0.0}
    first = DiLoCo([parameter()], every=1, **plain)
    take(first, [12.0] * ELEMS, weight=4.0)
    second = StreamingDiLoCo([parameter()], every=1, fragments=1, overlap=0, **plain)
    take(second, [-8.0] * ELEMS, weight=4.0)
    for one in (first, second):
        state = one.state_dict()
        assert (state["global"].tolist(), state["rounds"]) == ([3.0] * ELEMS, 1)


def test_a_result_of_a_partial_mean_is_a_gradient_that_the_optimiser_steps_with() -> None:
    trained = parameter()
    member = PartialMean([trained], optimizer=torch.optim.SGD([trained], lr=0.5, weight_decay=0.5))
    take(member, [0.0] * ELEMS, weight=[3.0, 0.0])
    assert trained.tolist() == [1.0] * ELEMS, "nobody had a gradient"
    take(member, [4.5] * ELEMS, weight=[3.0, 1.0])
    assert trained.tolist() == [0.0] * ELEMS


def test_a_step_that_a_program_makes_on_the_group_by_itself_changes_nothing() -> None:
    trained = parameter()
    optimizer = torch.optim.SGD([trained], lr=0.5)
    options: dict[str, Any] = {"every": 1, "fragments": 1}
    for one in (
        DiLoCo([trained], every=1),
        StreamingDiLoCo([trained], overlap=0, **options),
        AsyncDiLoCo([trained], **options),
        PartialMean([trained], optimizer=optimizer),
        A2CiD2([trained]),
    ):
        take(one, [5.0])
        take(one, [5.0] * ELEMS, [5.0])
        state = one.state_dict()
        assert state.get("global", state.get("parameters")).tolist() == [1.0] * ELEMS


def test_no_gradient_is_left_of_a_step_that_a_member_repeats() -> None:
    trained = parameter()
    take(PartialMean([trained], optimizer=torch.optim.SGD([trained], lr=0.5)), [2.0] * ELEMS, weight=[1.0, 1.0])
    trained.sum().backward()  # as a loop has it that clears gradients behind its step
    assert trained.grad is not None
    assert trained.grad.tolist() == [1.0] * ELEMS


def test_what_a_hook_of_the_optimiser_does_is_done_in_steps_that_a_member_repeats_too() -> None:
    trained = parameter()
    optimizer = torch.optim.SGD([trained], lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_([trained], 0.5))
    take(PartialMean([trained], optimizer=optimizer), [2.0] * ELEMS, weight=[1.0, 1.0])
    assert trained.tolist() == [0.5] * ELEMS


class LeftOut:
    """A group that goes on without a member in its step, has all values of 5, and lets it in again."""

    unbroken = nullcontext

    def __init__(self, algorithm: Algorithm, *, contributed: bool) -> None:
        self._algorithm, self._contributed = algorithm, contributed

    def stepped(self, _bytes: int) -> None:
        pass

    def rejoin(self) -> None:
        pass

    def all_reduce(self, *_tensors: Any, **_options: object) -> Committed:
        state = {"global": torch.full((ELEMS,), 5.0), "buffer": torch.zeros(ELEMS), "rounds": 9}
        self._algorithm._take_shared_state(state)
        self.meanwhile()
        return Committed(9, (), attempts=0, contributed=self._contributed, applied=True)

    def meanwhile(self) -> None:
        """What happens between the others' state and the word on this member's part."""


@pytest.mark.parametrize("contributed", [False, True])
def test_what_a_member_learned_before_it_was_left_out_counts_again_only_where_the_others_do_not_have_it(
    contributed: bool,
) -> None:
    trained = parameter()
    algorithm = DiLoCo([trained], every=1)
    algorithm._joined = cast(VolatileGroup, LeftOut(algorithm, contributed=contributed))
    with algorithm.step(), torch.no_grad():
        trained.add_(2.0)
    assert trained.tolist() == [5.0 if contributed else 7.0] * ELEMS


@pytest.mark.parametrize(("made_up", "learned"), [(None, 2.0), ("left out", 2.0), ("left out, but counted", 0.0)])
def test_what_a_late_member_learned_stays_in_its_model_until_it_counts(made_up: str | None, learned: float) -> None:
    trained = parameter()
    algorithm = DiLoCo([trained], every=1, outer_rate=1.0, outer_momentum=0.0, quorum=2)

    class Late(LeftOut):
        """A group whose members have averaged values of 5 without this one, which may be left out as it makes up."""

        def all_reduce(self, *tensors: Any, **_options: object) -> Committed:
            tensors[0][0].fill_(5.0)
            return Committed(1, (), attempts=0, contributed=False)

        def make_up(self, *tensors: Any, **options: object) -> Committed | None:
            assert tensors[0][0].tolist() == [7.0] * ELEMS
            return None if made_up is None else super().all_reduce(*tensors, **options)

    algorithm._joined = cast(VolatileGroup, Late(algorithm, contributed=made_up == "left out, but counted"))
    with algorithm.step(), torch.no_grad():
        trained.add_(2.0)
    assert trained.tolist() == [5.0 + learned] * ELEMS
    algorithm.finish()  # at once after a meeting: those that end together end with the same
    assert trained.tolist() == [5.0] * ELEMS


@pytest.mark.parametrize("contributed", [False, True])
def test_a_member_that_trains_on_while_it_is_let_in_again_brings_no_step_twice(contributed: bool) -> None:
    trained = parameter()
    algorithm = AsyncDiLoCo([trained], every=1, fragments=1)

    class TrainsOn(LeftOut):
        """Training makes a step before the merging thread has the others' word, and that thread ends afterwards."""

        def meanwhile(self) -> None:
            with algorithm.step(), torch.no_grad():
                trained.add_(10.0)
            algorithm._closing = True

    group = cast(VolatileGroup, TrainsOn(algorithm, contributed=contributed))
    algorithm._joined, algorithm._merging = group, Future()
    with algorithm.step(), torch.no_grad():
        trained.add_(2.0)
    algorithm._merge_in_turn(group)
    algorithm._meet_merges()
    assert trained.tolist() == [15.0 if contributed else 17.0] * ELEMS
    assert algorithm._steps == [1 if contributed else 2]


class GpuTensor(torch.Tensor):
    """Stands for one on a GPU: only its copy on the host can be read by who has none."""

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def partial_mean(kind: type[torch.Tensor]) -> PartialMean:
    """After two steps; its optimiser's tensors are of that kind."""
    trained = parameter()
    optimizer = torch.optim.AdamW([trained], lr=0.5)
    made = PartialMean([trained], optimizer=optimizer)
    for gradient in (2.0, -3.0):
        take(made, [gradient] * ELEMS)
    for name, value in optimizer.state[trained].items():
        optimizer.state[trained][name] = value.as_subclass(kind)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5).as_subclass(kind)
    return made


def test_a_member_without_a_gpu_takes_the_state_of_one_with_a_gpu_which_gives_the_same_bytes() -> None:
    on_host, on_gpu = partial_mean(torch.Tensor), partial_mean(GpuTensor)
    state = on_gpu._state_bytes()
    assert state == on_host._state_bytes()
    assert state is not None
    trained = parameter()
    newcomer = PartialMean([trained], optimizer=torch.optim.AdamW([trained], lr=0.1))
    newcomer._take_state_bytes(state)
    assert newcomer._state_bytes() == state


def test_a_state_that_names_a_gpu_is_taken_by_who_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:7")
    state = partial_mean(torch.Tensor)._state_bytes()
    assert state is not None
    assert b"cuda:7" in state
    trained = parameter()
    PartialMean([trained], optimizer=torch.optim.AdamW([trained], lr=0.1))._take_state_bytes(state)
    assert trained.device.type == "cpu"
