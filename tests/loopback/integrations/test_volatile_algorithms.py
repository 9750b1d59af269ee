"""What all algorithms promise: alone each trains as its inner optimiser, and who was late or away goes on with all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from patience import wait_until
from volatile_members import (
    SETTINGS,
    adamw,
    batch,
    flat,
    in_threads,
    learn,
    model,
    register,
    sgd,
    step_once,
    step_until,
    train,
)

from hive_qos.errors import EvictedError, MisuseError, PeerError, TimedOutError
from integrations.volatile import A2CiD2, AsyncDiLoCo, DiLoCo, LocalSGD, PartialMean, StreamingDiLoCo
from integrations.volatile.algorithm import Algorithm
from transport.volatile import steps
from transport.volatile.steps import Steps


def alone(make: Callable[[torch.nn.Module], torch.optim.Optimizer], *, steps: int = 6) -> torch.Tensor:
    """What one member's batches train a model to without any algorithm."""
    network = model()
    inner = make(network)
    for number in range(steps):
        learn(network, inner, number)
        inner.step()
    return flat(network)


@pytest.mark.parametrize(
    "make",
    [
        lambda network, inner: StreamingDiLoCo(
            network.parameters(), every=2, fragments=2, overlap=0, outer_rate=1.0, outer_momentum=0.0
        ),
        lambda network, inner: AsyncDiLoCo(
            network.parameters(), every=2, fragments=2, outer_rate=1.0, outer_momentum=0.0
        ),
        lambda network, inner: A2CiD2(network.parameters()),
        lambda network, inner: PartialMean(network.parameters(), optimizer=inner),
    ],
    ids=["StreamingDiLoCo", "AsyncDiLoCo", "A2CiD2", "PartialMean"],
)
def test_one_member_trains_as_its_inner_optimiser_alone(make: Callable[..., Algorithm]) -> None:
    network = model()
    inner = adamw(network)
    algorithm = make(network, inner)
    train(algorithm, network, inner, register(), after=lambda _: algorithm.finish())
    torch.testing.assert_close(flat(network), alone(adamw), rtol=1e-4, atol=1e-6)


def test_who_joins_takes_a_state_of_its_own_models_size_that_is_larger_than_any_message_may_be() -> None:
    networks, where, ended = [model(2**14) for _ in range(2)], register(), threading.Event()

    def run(rank: int) -> None:
        algorithm, small = LocalSGD(networks[rank].parameters()), replace(SETTINGS, receive_bytes_max=2**21)
        assert rank == 0 or wait_until(lambda: where.view() is not None)
        with algorithm.join(where, name=f"member-{rank}", settings=small):
            if rank == 0:
                step_until(ended, lambda: not algorithm.meet(), pause_s=0.02)
            ended.set()

    in_threads(2, run)


def test_a_member_that_comes_back_brings_what_it_learned_while_it_was_cut_off() -> None:
    network, where = model(), register()
    algorithm, staying = LocalSGD(network.parameters(), every=4), model()
    other = LocalSGD(staying.parameters(), every=1)
    is_there, ends = threading.Event(), threading.Event()

    def stay() -> None:
        with other.join(where, name="stays", settings=SETTINGS):
            is_there.set()
            while not ends.wait(0.05):
                other.meet()

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert is_there.wait(60.0)
        for _ in range(2):
            with algorithm.join(where, name="comes", settings=SETTINGS), algorithm.step(), torch.no_grad():
                for one in network.parameters():
                    one.add_(0.5)
    finally:
        ends.set()
        thread.join(60.0)
    torch.testing.assert_close(flat(network), flat(model()) + 1.0)


@pytest.mark.parametrize("kind", [AsyncDiLoCo, StreamingDiLoCo])
def test_what_was_merged_before_a_member_left_does_not_count_again_when_it_comes_back(
    kind: type[AsyncDiLoCo | StreamingDiLoCo],
) -> None:
    parameter, where = torch.nn.Parameter(torch.zeros(10)), register()
    options: dict[str, Any] = {"overlap": 1, "alpha": 0.0} if kind is StreamingDiLoCo else {}
    algorithm = kind([parameter], every=2, fragments=1, outer_rate=1.0, outer_momentum=0.0, compression="", **options)
    for _ in range(2):
        with algorithm.join(where, name="alone", settings=SETTINGS):
            before = algorithm.state_dict()["global"]
            for _ in range(2):
                with algorithm.step(), torch.no_grad():
                    parameter.add_(1.0)
            wait_until(lambda: not torch.equal(algorithm.state_dict()["global"], before))  # noqa: B023 - called at once
    torch.testing.assert_close(parameter.detach(), torch.full((10,), 4.0))


def test_16_bit_parameters_do_not_pull_the_global_ones_to_what_they_can_hold() -> None:
    network = model().to(torch.bfloat16)
    algorithm = DiLoCo(network.parameters(), every=1, outer_rate=0.7, outer_momentum=0.9)
    state = algorithm.state_dict()
    algorithm.load_state_dict(state | {"global": torch.randn_like(state["global"])})
    before = algorithm.state_dict()
    with algorithm.join(register(), name="alone", settings=SETTINGS):
        for _ in range(3):
            with algorithm.step():
                pass
    assert torch.equal(algorithm.state_dict()["global"], before["global"])
    assert torch.equal(flat(network), before["global"].to(torch.bfloat16))


def test_a_run_of_two_members_goes_on_as_one_of_three_from_its_checkpoint() -> None:
    def go_on(size: int, state: dict[str, torch.Tensor] | None) -> list[dict[str, torch.Tensor]]:
        networks, where = [model() for _ in range(size)], register()
        found: list[dict[str, torch.Tensor]] = [{} for _ in range(size)]

        def run(rank: int) -> None:
            algorithm = DiLoCo(networks[rank].parameters(), every=2)
            if state is not None:
                algorithm.load_state_dict(state)
                assert torch.equal(flat(networks[rank]), state["global"])
            train(algorithm, networks[rank], sgd(networks[rank]), where, rank=rank, size=size, steps=4)
            found[rank] = algorithm.state_dict()

        in_threads(size, run)
        assert all(torch.equal(one[name], found[0][name]) for one in found for name in ("global", "buffer"))
        return found

    first = go_on(2, None)[0]
    second = go_on(3, first)[0]
    assert (first["rounds"], second["rounds"]) == (2, 4)
    assert not torch.equal(first["global"], second["global"])


@pytest.mark.parametrize("kind", [DiLoCo, StreamingDiLoCo, AsyncDiLoCo])
def test_members_hold_the_same_global_bits_after_each_round_and_who_comes_later_too(
    kind: type[DiLoCo] | type[StreamingDiLoCo] | type[AsyncDiLoCo],
) -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    options: dict[str, Any] = {} if kind is DiLoCo else {"fragments": 2}
    options |= {"overlap": 1} if kind is StreamingDiLoCo else {}
    algorithms = [kind(one.parameters(), every=2, **options) for one in networks]
    seen: list[dict[int, bytes]] = [{} for _ in range(size)]
    begun, ended = threading.Event(), threading.Event()

    def run(rank: int) -> None:
        algorithm, step = algorithms[rank], algorithms[rank]._step

        def recorded(*arguments: object) -> None:
            step(*arguments)  # type: ignore[arg-type]
            state = algorithm.state_dict()
            seen[rank][state["rounds"]] = b"".join(state[name].numpy().tobytes() for name in ("global", "buffer"))

        algorithm._step = recorded  # type: ignore[method-assign, assignment]
        if rank == 2:
            assert begun.wait(60.0)
        inner = sgd(networks[rank])
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS):
            enough = len(seen[rank]) + 5
            wait_until(lambda: step_once(networks[rank], inner, algorithm) or len(seen[rank]) >= enough, pause_s=0.01)
            (ended if rank == 2 else begun).set()
            wait_until(lambda: ended.is_set() or step_once(networks[rank], inner, algorithm), pause_s=0.01)

    in_threads(size, run)
    everybody = set(seen[0]) & set(seen[1]) & set(seen[2])
    assert len(everybody) >= 4
    for number in set(seen[0]) | set(seen[1]) | set(seen[2]):
        assert len({one[number] for one in seen if number in one}) == 1, number


@pytest.mark.parametrize(
    "make",
    [
        lambda network: DiLoCo(network.parameters()),
        lambda network: A2CiD2(network.parameters()),
        lambda network: PartialMean(network.parameters(), optimizer=sgd(network)),
    ],
    ids=["DiLoCo", "A2CiD2", "PartialMean"],
)
def test_a_state_is_loaded_before_a_member_joins_not_after(make: Callable[[torch.nn.Module], Algorithm]) -> None:
    algorithm = make(model())
    state = algorithm.state_dict()
    with (
        algorithm.join(register(), name="alone", settings=SETTINGS),
        pytest.raises(MisuseError, match="before you join"),
    ):
        algorithm.load_state_dict(state)


@pytest.mark.parametrize(
    "make",
    [
        lambda network: DiLoCo(network.parameters(), every=1, quorum=2),
        lambda network: StreamingDiLoCo(  # fragments of 512 and of 65 values
            network.parameters(), every=2, fragments=2, overlap=0, alpha=0.0, compression="", quorum=2
        ),
    ],
    ids=["DiLoCo", "StreamingDiLoCo"],
)
def test_with_a_quorum_members_go_on_without_a_late_one_which_takes_what_it_missed(
    make: Callable[[torch.nn.Module], DiLoCo | StreamingDiLoCo],
) -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    algorithms = [make(one) for one in networks]
    seen: list[dict[int, bytes]] = [{} for _ in range(size)]
    counted: list[bool] = []
    ended = threading.Event()

    def run(rank: int) -> None:
        algorithm, inner = algorithms[rank], sgd(networks[rank])

        def step() -> None:
            step_once(networks[rank], inner, algorithm)
            state = algorithm.state_dict()
            seen[rank][state["rounds"]] = b"".join(state[name].numpy().tobytes() for name in ("global", "buffer"))
            assert algorithm.last is not None
            if isinstance(algorithm, DiLoCo):  # what did not count stays in the model
                assert torch.equal(flat(networks[rank]), state["global"]) == algorithm.last.contributed
            if rank == 2:
                counted.append(algorithm.last.contributed)

        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            wait_until(lambda: len(group.view.members) == size or step(), pause_s=0.02)
            if rank < 2:
                step_until(ended, step, pause_s=0.02)
                return
            for _ in range(8):
                step()
            wait_until(lambda: step() or not counted[-1], pause_s=1.0, limit_s=60.0)
            wait_until(lambda: step() or counted[-1], pause_s=0.01)
            ended.set()

    in_threads(size, run)
    everybody = set(seen[0]) & set(seen[2])
    assert len(everybody) > 4
    assert all(seen[0][number] == seen[2][number] for number in everybody)


@pytest.mark.parametrize(
    "make",
    [
        lambda network: StreamingDiLoCo(network.parameters(), every=2, fragments=1, overlap=1),
        lambda network: AsyncDiLoCo(network.parameters(), every=2, fragments=1),
    ],
    ids=["StreamingDiLoCo", "AsyncDiLoCo"],
)
def test_who_joins_gets_no_state_in_which_a_committed_step_is_missing(
    make: Callable[[torch.nn.Module], Algorithm],
) -> None:
    network = model()
    algorithm, inner, began, go_on = make(network), sgd(network), threading.Event(), threading.Event()
    apply = algorithm._apply

    def slowly(result: Any) -> None:
        began.set()
        assert go_on.wait(60.0)
        apply(result)

    algorithm._apply = slowly  # type: ignore[method-assign]
    with algorithm.join(register(), name="member", settings=SETTINGS) as group:
        step_once(network, inner, algorithm)
        if isinstance(algorithm, AsyncDiLoCo):
            algorithm._hurry.set()  # else the merge might begin within the next step, which would wait for it
        else:
            step_once(network, inner, algorithm)
        assert began.wait(60.0)
        assert group.step == 1
        assert algorithm._state_bytes() is None  # as where this member stays for who learns
        go_on.set()
        if isinstance(algorithm, StreamingDiLoCo):
            wait_until(algorithm._state_bytes)


ALL = pytest.mark.parametrize(
    "make",
    [
        lambda network, inner: DiLoCo(network.parameters(), every=2),
        lambda network, inner: StreamingDiLoCo(network.parameters(), every=4, fragments=2, overlap=1),
        lambda network, inner: AsyncDiLoCo(network.parameters(), every=4, fragments=2),
        lambda network, inner: A2CiD2(network.parameters()),
        lambda network, inner: PartialMean(network.parameters(), optimizer=inner),
    ],
    ids=["DiLoCo", "StreamingDiLoCo", "AsyncDiLoCo", "A2CiD2", "PartialMean"],
)


@ALL
def test_a_member_that_was_left_out_joins_again_in_the_middle_of_training(make: Callable[..., Algorithm]) -> None:
    networks, where, ended = [model() for _ in range(3)], register(), threading.Event()
    held: dict[int, list[torch.Tensor]] = {}

    def run(rank: int) -> None:
        network = networks[rank]
        inner = adamw(network)
        algorithm = make(network, inner)

        def step() -> None:
            step_once(network, inner, algorithm)
            state = algorithm.state_dict()
            if isinstance(algorithm, PartialMean):
                held.setdefault(group.step, []).append(flat(network))
            elif not isinstance(algorithm, A2CiD2):
                held.setdefault(state["rounds"], []).append(state["global"])

        with algorithm.join(where, name=f"member-{rank}", members_min=2, settings=SETTINGS) as group:
            wait_until(lambda: len(group.view.workers) == 3 or step(), pause_s=0.05)
            group.members_min = 1
            if rank < 2:
                step_until(ended, step, pause_s=0.05)
                return
            before = group.member
            group._control.fail(EvictedError("the others go on without it"))
            wait_until(lambda: group.member != before or step(), pause_s=0.05)
            algorithm.last = None
            if isinstance(algorithm, A2CiD2):
                algorithm.exchanges = 0
            wait_until(lambda: takes_part(algorithm) or step(), pause_s=0.05)
            ended.set()

    in_threads(3, run)
    for state in held.values():
        for one in state[1:]:
            torch.testing.assert_close(one, state[0])


def takes_part(algorithm: Algorithm) -> bool:
    """Whether it has trained with two others."""
    if isinstance(algorithm, A2CiD2):
        return algorithm.exchanges > 0
    return algorithm.last is not None and algorithm.last.contributed and len(algorithm.last.members) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda network, inner: DiLoCo(network.parameters(), every=1),
        lambda network, inner: StreamingDiLoCo(network.parameters(), every=1, fragments=1, overlap=0),
        lambda network, inner: PartialMean(network.parameters(), optimizer=inner),
    ],
    ids=["DiLoCo", "StreamingDiLoCo", "PartialMean"],
)
def test_a_meeting_waits_for_a_member_that_lives_as_long_as_join_was_told(make: Callable[..., Algorithm]) -> None:
    where, ended, limit_s = register(), threading.Event(), 1.0

    def run(rank: int) -> None:
        network = model()
        inner = sgd(network)
        algorithm = make(network, inner)
        with algorithm.join(where, name=f"m-{rank}", members_min=2, settings=SETTINGS, timeout_s=limit_s) as group:
            group.all_reduce(torch.zeros(1), timeout_s=60.0)  # both are there
            if rank == 1:
                assert ended.wait(60.0)
                return
            try:
                with pytest.raises(TimedOutError) as late:
                    step_once(network, inner, algorithm)
                assert late.value.timeout_s == limit_s
            finally:
                ended.set()

    in_threads(2, run)


def at_round(algorithm: DiLoCo) -> DiLoCo:
    """With a checkpoint of a run that went farther than the test's goes."""
    algorithm.load_state_dict(algorithm.state_dict() | {"rounds": 10_000})
    return algorithm


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda network: AsyncDiLoCo(network.parameters()), r"by DiLoCo\(.*\), and this member by AsyncDiLoCo\("),
        (lambda network: LocalSGD(network.parameters()), r"by DiLoCo\(.*, and this member by LocalSGD\("),
        (lambda network: DiLoCo(network.parameters(), outer_rate=0.5), r"rate=0\.7.* by DiLoCo\(.*rate=0\.5"),
        (lambda network: DiLoCo(network.parameters(), quorum=2), r"quorum=0.* by DiLoCo\(.*quorum=2"),
        (lambda network: DiLoCo([network.parameters().__next__()]), r"fragments=\[577\].*fragments=\[512\]"),
        (lambda network: A2CiD2(network.parameters()), r"by DiLoCo\(.*, and this member by A2CiD2\("),
        (lambda network: at_round(DiLoCo(network.parameters(), every=1)), r"at round \d+, and the checkpoint .* 10000"),
    ],
    ids=["AsyncDiLoCo", "LocalSGD", "rate", "quorum", "model", "A2CiD2", "newer checkpoint"],
)
def test_who_joins_with_another_algorithm_is_refused_and_the_others_go_on(
    make: Callable[[torch.nn.Module], Algorithm], reason: str
) -> None:
    network, where, begun, ended = model(), register(), threading.Event(), threading.Event()
    algorithm = DiLoCo(network.parameters(), every=1)

    def run(rank: int) -> None:
        if rank == 1:
            assert begun.wait(60.0)
            with pytest.raises(PeerError, match=reason), make(model()).join(where, name="other", settings=SETTINGS):
                pass
            ended.set()
            return
        with algorithm.join(where, name="member", settings=SETTINGS) as group:
            begun.set()
            step_until(ended, lambda: step_once(network, sgd(network), algorithm), pause_s=0.02)
            before = group.step
            wait_until(lambda: not group.view.joining or step_once(network, sgd(network), algorithm), pause_s=0.01)
            step_once(network, sgd(network), algorithm)
            assert group.step > before
            assert [one.name for one in group.view.members] == ["member"]

    in_threads(2, run)


@pytest.mark.parametrize("kind", [DiLoCo, StreamingDiLoCo, AsyncDiLoCo])
@pytest.mark.parametrize("goes_on", [False, True])
def test_weights_that_are_loaded_before_a_member_joins_are_what_it_begins_with(
    kind: type[DiLoCo] | type[StreamingDiLoCo] | type[AsyncDiLoCo], goes_on: bool
) -> None:
    network = model()
    algorithm = kind(network.parameters())
    state = algorithm.state_dict()
    if goes_on:
        algorithm.load_state_dict(state | {"rounds": 8})
    with torch.no_grad():
        for one in network.parameters():
            one.add_(1.0)
    loaded = flat(network)
    with algorithm.join(register(), name="alone", settings=SETTINGS):
        expected = state["global"] if goes_on else loaded  # a checkpoint has the values of its run
        assert torch.equal(algorithm.state_dict()["global"], expected)
        assert torch.equal(flat(network), expected)


@pytest.mark.parametrize("raises", ["one's block", "each block", "one's optimizer"])
def test_a_step_that_is_committed_is_made_although_its_block_raises(raises: str) -> None:
    networks, where, ended = [model() for _ in range(2)], register(), threading.Event()
    seen: list[dict[int, torch.Tensor]] = [{} for _ in range(2)]

    def run(rank: int) -> None:
        network = networks[rank]
        inner = adamw(network)
        algorithm = PartialMean(network.parameters(), optimizer=inner)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:

            def step(*, error: type[BaseException] | None = None) -> None:
                learn(network, inner, 7)
                with algorithm.step():
                    if error is not None:
                        raise error
                    inner.step()
                seen[rank][group.step] = flat(network)

            wait_until(lambda: len(group.view.workers) == 2 or step(), pause_s=0.02)
            for _ in range(3):
                step()
            if rank == 1 and raises == "one's optimizer":
                broken = inner.register_step_pre_hook(lambda *_: exec("raise MemoryError"))
                with pytest.raises(MemoryError):
                    step()
                broken.remove()
            elif rank == 1 or raises == "each block":
                with pytest.raises(MemoryError):
                    step(error=MemoryError)
            if rank == 0:
                step_until(ended, step, pause_s=0.05)
                return
            enough = len(seen[1]) + 4
            wait_until(lambda: len(seen[1]) >= enough or step(), pause_s=0.01)
            ended.set()

    in_threads(2, run)
    both_have = set(seen[0]) & set(seen[1])
    assert len(both_have) >= 6
    for number in both_have:
        torch.testing.assert_close(seen[0][number], seen[1][number])


@pytest.mark.parametrize("during", ["the reduction", "the agreement", "the use of its result"])
def test_who_survives_ctrl_c_in_a_meeting_joins_again_and_the_others_go_on(
    during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, where, ended = 3, register(), threading.Event()
    seen: list[dict[int, torch.Tensor]] = [{} for _ in range(size)]
    presses: list[threading.Thread] = []
    where_it_is: dict[str, tuple[Any, str]] = {
        "the reduction": (steps, "_end"),
        "the agreement": (Steps, "_exchange"),
        "the use of its result": (LocalSGD, "_apply"),
    }
    place, name = where_it_is[during]
    real = getattr(place, name)

    def pressed(*arguments: Any) -> Any:
        if threading.current_thread() in presses:
            presses.clear()
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(place, name, pressed)

    def run(rank: int) -> None:
        network = model()
        inner, algorithm = sgd(network), LocalSGD(network.parameters(), every=1)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:

            def step() -> None:
                step_once(network, inner, algorithm)
                seen[rank][group.step] = algorithm.state_dict()["global"]

            wait_until(lambda: len(group.view.workers) == size or step(), pause_s=0.02)
            if rank:
                step_until(ended, step, pause_s=0.02)
                return
            presses.append(threading.current_thread())
            with pytest.raises(KeyboardInterrupt):
                step_once(network, inner, algorithm)
            enough = len(seen[1]) + 4
            wait_until(lambda: len(seen[1]) >= enough)  # with no further call of this one
            enough = len(seen[0]) + 4
            wait_until(lambda: len(seen[0]) >= enough or step(), pause_s=0.01)
            wait_until(lambda: len(group.view.workers) == size or step(), pause_s=0.01)
            ended.set()

    in_threads(size, run)
    for number in set(seen[0]) & set(seen[1]) & set(seen[2]):
        assert all(torch.equal(seen[0][number], one[number]) for one in seen)


def test_fragments_of_other_parameters_and_of_equal_sizes_are_told_apart() -> None:
    def described(*fragments: tuple[int, int], rate: float = 1) -> str:
        layers = [torch.nn.Parameter(torch.zeros(3)) for _ in range(4)]
        cut = [[layers[number] for number in one] for one in fragments]
        return StreamingDiLoCo(layers, every=2, fragments=cut, overlap=0, outer_rate=rate)._described()

    assert described((0, 2), (1, 3)) != described((0, 1), (2, 3))
    assert described((0, 2), (1, 3)) == described((0, 2), (1, 3), rate=1.0)


@ALL
def test_who_joins_with_weights_of_another_seed_trains_on_from_the_others(make: Callable[..., Algorithm]) -> None:
    where, begun, ended = register(), threading.Event(), threading.Event()
    networks = [model(), model()]
    with torch.no_grad():
        for one in networks[1].parameters():
            one.add_(100.0)  # as far from the others' as can be told

    def run(rank: int) -> None:
        network = networks[rank]
        inner = torch.optim.SGD(network.parameters(), lr=0.0 if rank else 0.1)  # it would diverge
        algorithm = make(network, inner)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            if rank == 0:
                begun.set()
                step_until(ended, lambda: step_once(network, inner, algorithm), pause_s=0.02)
                return
            wait_until(
                lambda: bool(flat(network).abs().max() < 10) or step_once(network, inner, algorithm), pause_s=0.01
            )
            wait_until(lambda: len(group.view.workers) == 2 or step_once(network, inner, algorithm), pause_s=0.01)
            ended.set()

    def in_turn(rank: int) -> None:
        assert rank == 0 or begun.wait(60.0)
        run(rank)

    in_threads(2, in_turn)
    assert flat(networks[0]).abs().max() < 10, "the newcomer's values came into the model"


@ALL
def test_a_member_whose_weights_become_nan_ends_alone(make: Callable[..., Algorithm]) -> None:
    where, both, ended = register(), threading.Event(), threading.Event()
    networks = [model(), model()]

    def run(rank: int) -> None:
        network = networks[rank]
        inner = sgd(network)
        algorithm = make(network, inner)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            wait_until(lambda: len(group.view.workers) == 2 or step_once(network, inner, algorithm), pause_s=0.01)
            if rank == 0:
                both.set()
                step_until(ended, lambda: step_once(network, inner, algorithm), pause_s=0.02)
                wait_until(lambda: len(group.view.members) == 1 or step_once(network, inner, algorithm), pause_s=0.01)
                for _ in range(4):
                    step_once(network, inner, algorithm)
                return
            wait_until(lambda: both.is_set() or step_once(network, inner, algorithm), pause_s=0.01)
            with torch.no_grad():
                next(iter(network.parameters()))[0, 0] = torch.nan
            wait_until(lambda: step_once(network, inner, algorithm), pause_s=0.02)

    def guarded(rank: int) -> None:
        if rank == 0:
            return run(rank)
        try:
            with pytest.raises(MisuseError, match=r"nothing of (it|them) was sent"):
                run(rank)
        finally:
            ended.set()

    in_threads(2, guarded)
    assert torch.isfinite(flat(networks[0])).all()


@pytest.mark.parametrize(
    "wrong", [{"name": 5}, {"members_min": 0}, {"timeout_s": float("nan")}, {"join_timeout_s": "1"}]
)
def test_wrong_arguments_of_join_are_named(wrong: dict[str, Any]) -> None:
    algorithm = DiLoCo(model().parameters())
    with (
        pytest.raises(MisuseError, match=next(iter(wrong))),
        algorithm.join(register(), settings=SETTINGS, **{"name": "one", **wrong}),
    ):
        pass


def test_an_algorithm_joins_once_at_a_time() -> None:
    algorithm = DiLoCo(model().parameters())
    with algorithm.join(register(), name="one", settings=SETTINGS) as group:
        with pytest.raises(MisuseError, match="joined already"), algorithm.join(register(), name="two"):
            pass
        assert algorithm._joined is group
    with algorithm.join(register(), name="one", settings=SETTINGS):
        pass


def test_a_second_algorithm_in_the_same_thread_and_job_is_refused_and_in_another_job_it_trains() -> None:
    where, networks = register(), [model() for _ in range(2)]
    first, second = (DiLoCo(one.parameters(), every=1) for one in networks)
    with first.join(where, name="first", settings=SETTINGS):
        with (
            pytest.raises(MisuseError, match="this thread has joined the job 'j' as first"),
            second.join(where, name="second", settings=SETTINGS, join_timeout_s=5.0),
        ):
            pass
        with second.join(register(), name="second", settings=SETTINGS):
            for algorithm, network in zip((first, second), networks, strict=True):
                step_once(network, adamw(network), algorithm)
                assert algorithm.last is not None
    with second.join(where, name="second", settings=SETTINGS):
        pass


EVERY: dict[str, Callable[..., Algorithm]] = {
    "LocalSGD": lambda network, inner: LocalSGD(network.parameters(), every=2),
    "DiLoCo": lambda network, inner: DiLoCo(network.parameters(), every=2),
    "StreamingDiLoCo": lambda network, inner: StreamingDiLoCo(network.parameters(), every=2, fragments=2, overlap=0),
    "AsyncDiLoCo": lambda network, inner: AsyncDiLoCo(network.parameters(), every=2, fragments=2),
    "A2CiD2": lambda network, inner: A2CiD2(network.parameters()),
    "PartialMean": lambda network, inner: PartialMean(network.parameters(), optimizer=inner),
}


@pytest.mark.parametrize("name", EVERY)
def test_other_defaults_of_torch_change_nothing(name: str) -> None:
    where, networks = register(), [model() for _ in range(2)]
    batches = [[batch(number * 2 + rank) for number in range(6)] for rank in range(2)]
    usual = torch.get_default_dtype()

    def run(rank: int) -> None:
        network = networks[rank]
        inner = sgd(network)
        with torch.device("meta"):  # as torch.set_default_device, but for this thread
            algorithm = EVERY[name](network, inner)
            with algorithm.join(where, name=f"member-{rank}", members_min=2, settings=SETTINGS):
                for inputs, targets in batches[rank]:
                    inner.zero_grad()
                    torch.nn.functional.mse_loss(network(inputs), targets).backward()
                    with algorithm.step():
                        inner.step()
                algorithm.finish()

    torch.set_default_dtype(torch.bfloat16)
    try:
        in_threads(2, run)
    finally:
        torch.set_default_dtype(usual)
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    assert not torch.equal(flat(networks[0]), flat(model()))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("other", ["frozen", "shapes"])
def test_who_joins_with_other_frozen_weights_or_other_shapes_is_refused(name: str, other: str) -> None:
    where, begun, ended = register(), threading.Event(), threading.Event()

    def run(rank: int) -> None:
        network = model()
        network[0].requires_grad_(False)
        if rank and other == "frozen":
            next(network.parameters()).data.zero_()
        elif rank:
            network[2].weight = torch.nn.Parameter(network[2].weight.detach().reshape(2, -1))
        algorithm = EVERY[name](network, inner := sgd(network))
        assert rank == 0 or begun.wait(60.0)
        with contextlib.ExitStack() as stack:
            if rank:
                stack.callback(ended.set)
                stack.enter_context(pytest.raises(PeerError, match=f"{other}='[0-9a-f]{{8}}'"))
            stack.enter_context(algorithm.join(where, name=f"member-{rank}", settings=SETTINGS))
            if rank == 0:
                begun.set()
                step_until(ended, lambda: step_once(network, inner, algorithm), pause_s=0.02)

    in_threads(2, run)


@pytest.mark.parametrize("name", EVERY)
def test_a_parameter_that_is_trained_later_is_told(name: str) -> None:
    network = model()
    network[0].requires_grad_(False)
    inner = sgd(network)
    algorithm = EVERY[name](network, inner)
    with algorithm.join(register(), name="member", settings=SETTINGS):
        step_once(network, inner, algorithm)
        network[0].requires_grad_(True)
        learn(network, inner, 1)
        with pytest.raises(MisuseError, match=f"required no gradient when this {name} was made"), algorithm.step():
            inner.step()


def test_parameters_that_are_parts_of_others_are_refused() -> None:
    part = torch.nn.Parameter(torch.zeros(3))
    part.device_mesh = object()  # type: ignore[attr-defined]
    with pytest.raises(MisuseError, match="DTensor, as FSDP makes them"):
        LocalSGD([part])
