"""Synchronous training with whoever is there is that of DDP, and late gradients count in the next step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
    step_beside_a_slower_one,
    step_once,
    step_until,
    train_on_unequal_batches,
)

from hive_qos.errors import MisuseError, PeerError
from integrations.volatile import PartialMean
from transport.collectives.problem import SMALL_BYTES
from transport.volatile.group import VolatileGroup
from transport.volatile.steps import Committed

SIZE = 2


def test_members_that_take_the_mean_gradient_train_as_one_with_all_batches_and_who_joins_has_the_optimisers_state() -> (
    None
):
    where, alone, together = register(), 2, 3
    networks = [model() for _ in range(SIZE)]
    inners = [adamw(one) for one in networks]
    algorithms = [
        PartialMean(network.parameters(), optimizer=inner) for network, inner in zip(networks, inners, strict=True)
    ]
    seen: list[dict[int, torch.Tensor]] = [{} for _ in range(SIZE)]
    took_part: dict[int, int] = {}
    trained = threading.Event()

    def run(rank: int) -> None:
        if rank == 1:
            with torch.no_grad():
                for one in networks[rank].parameters():
                    one.zero_()  # it comes with nothing of its own
            assert trained.wait(60.0)
        with algorithms[rank].join(where, name=f"member-{rank}", settings=SETTINGS) as group:

            def step() -> None:
                learn(networks[rank], inners[rank], group.step * SIZE + rank)
                with algorithms[rank].step():
                    inners[rank].step()
                last = algorithms[rank].last
                assert last is not None
                seen[rank][last.step], took_part[last.step] = flat(networks[rank]), len(last.members)

            for _ in range(alone if rank == 0 else together):
                step()
            trained.set()
            wait_until(lambda: rank == 1 or len(seen[1]) >= together or step(), pause_s=0.01)

    in_threads(SIZE, run)
    whole = model()
    optimizer = adamw(whole)
    for number in range(max(seen[1])):
        optimizer.zero_grad()
        members = took_part[number + 1]
        for rank in range(members):
            inputs, targets = batch(number * SIZE + rank)
            (torch.nn.functional.mse_loss(whole(inputs), targets) / members).backward()
        optimizer.step()
    assert all(torch.equal(values, seen[0][number]) for number, values in seen[1].items())
    torch.testing.assert_close(seen[1][max(seen[1])], flat(whole), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compression", ["", "int8"])
def test_members_with_batches_of_unequal_sizes_train_as_one_with_all_examples(compression: str) -> None:
    def make(network: torch.nn.Module, inner: torch.optim.Optimizer) -> PartialMean:
        assert flat(network).nbytes > SMALL_BYTES, "smaller ones are not compressed"
        return PartialMean(network.parameters(), optimizer=inner, compression=compression)

    both, whole = train_on_unequal_batches(make)
    assert torch.equal(both[0], both[1])
    torch.testing.assert_close(both[0], whole, rtol=1e-4, atol=1e-3 if compression else 1e-6)


def test_a_member_that_is_always_slower_counts_in_the_next_steps_and_holds_what_the_others_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    inners = [sgd(one) for one in networks]
    algorithms = [
        PartialMean(network.parameters(), optimizer=inner, quorum=2)
        for network, inner in zip(networks, inners, strict=True)
    ]
    brought: dict[int, float] = {}
    seen: list[dict[int, torch.Tensor]] = [{} for _ in range(size)]
    slow_calls: list[bool] = []
    made_up: list[int] = []
    ended = threading.Event()
    make_up = VolatileGroup.make_up

    def spied(group: VolatileGroup, *args: Any, **options: Any) -> Committed | None:
        found = make_up(group, *args, **options)
        if found is not None and found.contributed and str(group.member) == "member-2":
            made_up.append(found.step)
        return found

    monkeypatch.setattr(VolatileGroup, "make_up", spied)

    def run(rank: int) -> None:
        algorithm = algorithms[rank]

        def step() -> None:
            """The slow member's gradients are ones, the others' zeros."""
            values = torch.full((algorithm._all.elems,), float(rank == 2))
            algorithm._all.write_gradients(values, has=[True] * len(algorithm.parameters))
            with algorithm.step():
                inners[rank].step()
            last = algorithm.last
            assert last is not None
            brought[last.step] = float(algorithm._all.read_gradients()[0]) * len(last.members)
            seen[rank][last.step] = flat(networks[rank])
            if rank == 2:
                slow_calls.append(last.contributed)

        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            step_beside_a_slower_one(
                group, step, slower=rank == 2, size=size, enough=lambda: len(made_up) >= 6, ended=ended
            )

    in_threads(size, run)
    assert round(sum(brought.values()), 3) == sum(slow_calls), "each of its gradients counts once"
    both = seen[0].keys() & seen[2].keys()
    assert len(both) >= 6
    assert all(torch.equal(seen[0][one], seen[2][one]) for one in both)


@pytest.mark.parametrize("elems", [3, None], ids=["of another size", "of the same size"])
def test_a_reduction_of_the_callers_own_that_waits_for_all_meets_a_late_member_in_its_place(elems: int | None) -> None:
    size, rounds, where = 3, 20, register()
    networks = [model() for _ in range(size)]
    late: list[bool] = []
    sums: list[list[float]] = [[] for _ in range(size)]

    def run(rank: int) -> None:
        network = networks[rank]
        inner = sgd(network)
        algorithm = PartialMean(network.parameters(), optimizer=inner, quorum=2)
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
            for number in range(rounds):
                learn(network, inner, number * size + rank)
                time.sleep(0.02 + 0.06 * (rank == 2 and number > 8))
                with algorithm.step():
                    inner.step()
                if rank == 2:
                    assert algorithm.last is not None
                    late.append(not algorithm.last.contributed)
                own = torch.full((elems or algorithm._all.elems,), float(rank))
                group.all_reduce(own)
                sums[rank].append(float(own[0]))

    in_threads(size, run)
    assert any(late)
    assert sums == [[1.0] * rounds] * size, "the mean of 0, 1 and 2"
    assert all(torch.equal(flat(networks[0]), flat(one)) for one in networks)


def test_who_joins_has_the_state_of_the_scheduler_that_a_hook_steps() -> None:
    where, alone, together = register(), 5, 3
    networks = [model() for _ in range(SIZE)]
    seen: list[dict[int, torch.Tensor]] = [{} for _ in range(SIZE)]
    trained = threading.Event()

    def run(rank: int) -> None:
        inner = sgd(networks[rank])
        scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0 / (1.0 + step))
        inner.register_step_post_hook(lambda *_: scheduler.step())
        algorithm = PartialMean(networks[rank].parameters(), optimizer=inner, also=[scheduler])
        assert rank == 0 or trained.wait(60.0)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS):

            def step() -> None:
                step_once(networks[rank], inner, algorithm)
                assert algorithm.last is not None
                seen[rank][algorithm.last.step] = flat(networks[rank])

            for _ in range(alone if rank == 0 else together):
                step()
            trained.set()
            wait_until(lambda: rank == 1 or len(seen[1]) >= together or step(), pause_s=0.01)

    in_threads(SIZE, run)
    assert all(torch.equal(values, seen[0][number]) for number, values in seen[1].items())


def test_who_joins_again_steps_no_scheduler_in_the_step_in_which_it_does() -> None:
    where = register()
    networks, rates = [model() for _ in range(SIZE)], [0.0, 0.0]

    def run(rank: int) -> None:
        inner = sgd(networks[rank])
        scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0 / (1.0 + step))
        inner.register_step_post_hook(lambda *_: scheduler.step())
        algorithm = PartialMean(networks[rank].parameters(), optimizer=inner, also=[scheduler])
        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS) as group:
            for _ in range(3):
                step_once(networks[rank], inner, algorithm)
            group.members_min = 1
            if rank == 1:
                group.lose_state("as if it had slept")
                step_once(networks[rank], inner, algorithm)
                assert algorithm.last is not None
                assert algorithm.last.applied
            wait_until(
                lambda: rank == 1 or len(group.view.workers) == 1 or step_once(networks[rank], inner, algorithm),
                pause_s=0.01,
            )
            wait_until(
                lambda: len(group.view.workers) == SIZE or step_once(networks[rank], inner, algorithm), pause_s=0.01
            )
            last = max(group.step for _ in range(1))
            while group.step < last + 3:
                step_once(networks[rank], inner, algorithm)
            rates[rank] = inner.param_groups[0]["lr"] * (1.0 + group.step)

    in_threads(SIZE, run)
    assert rates == pytest.approx([0.1, 0.1])


class OfAnotherTorch(PartialMean):
    def _alike(self) -> dict[str, Any]:
        return super()._alike() | {"torch": "2.13.0"}


class Newer(PartialMean):
    """With a checkpoint of a run that went farther than the test's goes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.load_state_dict(self.state_dict() | {"steps": 10_000})

    def _described(self) -> str:
        return super()._described().replace("Newer", "PartialMean")


@pytest.mark.parametrize(
    ("kind", "dtype", "reason"),
    [
        (OfAnotherTorch, torch.float32, r"torch='2\.13\.0'"),
        (PartialMean, torch.bfloat16, "dtypes='"),
        (Newer, torch.float32, r"at step \d+, and the checkpoint .* at 10000: start first who"),
    ],
)
def test_who_joins_with_another_torch_or_dtype_or_a_newer_checkpoint_is_refused(
    kind: type[PartialMean], dtype: torch.dtype, reason: str
) -> None:
    where, begun, ended = register(), threading.Event(), threading.Event()

    def run(rank: int) -> None:
        network = model().to(dtype if rank == 1 else torch.float32)
        inner = sgd(network)
        if rank == 1:
            algorithm = kind(network.parameters(), optimizer=inner)
            assert begun.wait(60.0)
            with pytest.raises(PeerError, match=reason), algorithm.join(where, name="other", settings=SETTINGS):
                pass
            ended.set()
            return
        algorithm = PartialMean(network.parameters(), optimizer=inner)
        with algorithm.join(where, name="member", settings=SETTINGS):
            begun.set()
            step_until(ended, lambda: step_once(network, inner, algorithm), pause_s=0.02)

    in_threads(SIZE, run)


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
def test_an_optimizer_that_is_given_a_closure_is_told_and_members_stay_alike(optimizer: str) -> None:
    where, networks, ended = register(), [model() for _ in range(SIZE)], threading.Barrier(SIZE)

    def run(rank: int) -> None:
        network = networks[rank]
        inner = sgd(network) if optimizer == "sgd" else torch.optim.LBFGS(network.parameters(), lr=0.1)
        algorithm = PartialMean(network.parameters(), optimizer=inner)

        def closure() -> float:
            inputs, targets = batch(rank)
            inner.zero_grad()
            loss = torch.nn.functional.mse_loss(network(inputs), targets)
            loss.backward()
            return loss.item()

        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS):
            closure()
            with pytest.raises(MisuseError, match="step the optimizer without one"), algorithm.step():
                inner.step(closure)
            ended.wait(60.0)

    in_threads(SIZE, run)
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    assert torch.equal(flat(networks[0]), flat(model())) == (optimizer == "lbfgs"), (
        "the others' step is made all the same"
    )


@pytest.mark.parametrize("fails", ["left out", "no memory"])
def test_a_step_that_one_member_leaves_out_or_has_no_memory_for_is_made_there_as_by_the_others(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, networks, ended = register(), [model() for _ in range(SIZE)], threading.Barrier(SIZE)

    def run(rank: int) -> None:
        inner = adamw(networks[rank])
        algorithm = PartialMean(networks[rank].parameters(), optimizer=inner)

        def no_memory(_result: object) -> None:
            monkeypatch.undo()
            raise torch.OutOfMemoryError

        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS):
            for number in range(5):
                learn(networks[rank], inner, number * SIZE + rank)
                odd = number == 2 and rank == 1
                if odd and fails == "no memory":
                    monkeypatch.setattr(algorithm, "_write_mean", no_memory)
                try:
                    with algorithm.step():
                        if not (odd and fails == "left out"):
                            inner.step()
                except torch.OutOfMemoryError:
                    assert odd
            ended.wait(60.0)

    in_threads(SIZE, run)
    assert torch.equal(flat(networks[0]), flat(networks[1]))


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_gradients_that_are_changed_once_they_are_averaged_are_refused_but_by_hooks_of_the_optimizer(
    implementation: str,
) -> None:
    network = model()
    inner = torch.optim.AdamW(
        network.parameters(), lr=0.01, foreach=implementation == "foreach", fused=implementation == "fused"
    )

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)

    inner.register_step_pre_hook(clip)
    algorithm = PartialMean(network.parameters(), optimizer=inner)

    def step(spoil: Callable[[], None]) -> None:
        learn(network, inner, 0)
        with algorithm.step():
            spoil()
            inner.step()

    with algorithm.join(register(), name="member", settings=SETTINGS):
        for spoil in (clip, inner.zero_grad):
            step(lambda: None)
            with pytest.raises(MisuseError, match=r"clip them in a hook of this optimizer \(`optimizer"):
                step(spoil)


def test_what_no_member_has_a_gradient_of_is_left_alone_and_what_one_has_is_not() -> None:
    where, networks = register(), [model() for _ in range(SIZE)]

    def run(rank: int) -> None:
        network = networks[rank]
        inner = torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.5)
        algorithm = PartialMean(network.parameters(), optimizer=inner)
        _, unused, _, of_one = network.parameters()
        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS):
            for number in range(3):
                learn(network, inner, number * SIZE + rank)
                unused.grad = None
                if rank == 0:
                    of_one.grad = None
                with algorithm.step():
                    inner.step()

    in_threads(SIZE, run)
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    same = [
        torch.equal(one, before) for one, before in zip(networks[0].parameters(), model().parameters(), strict=True)
    ]
    assert same == [False, True, False, False]


def test_a_gradient_that_is_not_finite_is_told_with_what_to_do() -> None:
    network = model()
    inner = sgd(network)
    algorithm = PartialMean(network.parameters(), optimizer=inner)
    with algorithm.join(register(), name="member", settings=SETTINGS):
        learn(network, inner, 0)
        for one in network.parameters():
            one.grad = torch.full_like(one, torch.inf)
        with pytest.raises(MisuseError, match=r"a gradient is not finite.*train in bfloat16"), algorithm.step():
            inner.step()


def test_a_parameter_of_the_optimizers_that_was_not_given_is_told() -> None:
    network, more = model(), torch.nn.Linear(3, 3)
    inner = sgd(network)
    algorithm = PartialMean(network.parameters(), optimizer=inner)
    with algorithm.join(register(), name="member", settings=SETTINGS):
        inner.add_param_group({"params": list(more.parameters())})
        learn(network, inner, 0)
        with pytest.raises(MisuseError, match="make both of the same parameters"), algorithm.step():
            inner.step()


def test_an_optimizer_whose_step_is_wrapped_twice_may_clip_in_its_hook() -> None:
    """torch wraps the `step` of each class that was made once, and a class calls its parent's."""

    class Own(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    network = model()
    inner = Own(network.parameters(), lr=1e-2)

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)

    inner.register_step_pre_hook(clip)
    algorithm, before = PartialMean(network.parameters(), optimizer=inner), flat(network)
    with algorithm.join(register(), name="member", settings=SETTINGS):
        step_once(network, inner, algorithm)
    assert not torch.equal(flat(network), before)
