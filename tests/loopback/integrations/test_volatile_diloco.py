"""DiLoCo and local SGD do what their papers say: the special cases that have to be equal, and their state."""

from __future__ import annotations

import functools
import threading
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from patience import wait_until
from torch._C._distributed_c10d import HashStore
from volatile_members import (
    SETTINGS,
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
    train,
    train_on_unequal_batches,
)

from hive_qos.errors import MisuseError, TimedOutError
from integrations.volatile import DiLoCo, LocalSGD, StreamingDiLoCo
from integrations.volatile.site import Site
from transport.volatile.group import VolatileGroup
from transport.volatile.protocol.messages import Look

BATCHES = 6


def test_one_member_that_meets_after_each_step_trains_as_its_inner_optimiser_alone_to_the_bit() -> None:
    alone, network = model(), model()
    inner = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    for number in range(BATCHES):
        inputs, targets = batch(number)
        inner.zero_grad()
        torch.nn.functional.mse_loss(alone(inputs), targets).backward()
        inner.step()
    algorithm = DiLoCo(network.parameters(), every=1, outer_rate=1.0, outer_momentum=0.0)
    train(algorithm, network, torch.optim.AdamW(network.parameters(), lr=1e-2), register())
    assert torch.equal(flat(alone), flat(network))


def test_members_that_meet_after_each_step_of_sgd_train_as_one_with_the_mean_gradient() -> None:
    size, where = 2, register()
    networks = [model() for _ in range(size)]
    algorithms = [LocalSGD(one.parameters(), every=1) for one in networks]

    def run(rank: int) -> None:
        inner = torch.optim.SGD(networks[rank].parameters(), lr=0.1)
        train(algorithms[rank], networks[rank], inner, where, rank=rank, size=size)

    in_threads(size, run)
    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for number in range(BATCHES):
        optimizer.zero_grad()
        for rank in range(size):
            inputs, targets = batch(number * size + rank)
            (torch.nn.functional.mse_loss(whole(inputs), targets) / size).backward()
        optimizer.step()
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    torch.testing.assert_close(flat(networks[0]), flat(whole), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [DiLoCo, StreamingDiLoCo])
def test_members_with_batches_of_unequal_sizes_that_meet_after_each_step_train_as_one_with_all_examples(
    kind: type[DiLoCo] | type[StreamingDiLoCo],
) -> None:
    options: dict[str, Any] = {"every": 1, "outer_rate": 1.0, "outer_momentum": 0.0}
    if kind is StreamingDiLoCo:
        options |= {"fragments": 1, "overlap": 0, "compression": ""}
    both, whole = train_on_unequal_batches(lambda network, _: kind(network.parameters(), **options))
    assert torch.equal(both[0], both[1])
    torch.testing.assert_close(both[0], whole, rtol=1e-4, atol=1e-6)


def test_the_outer_step_is_that_of_sgd_with_nesterov_momentum() -> None:
    network = model()
    algorithm = DiLoCo(network.parameters(), every=2)
    expected = torch.nn.Parameter(flat(network))
    outer = torch.optim.SGD([expected], lr=0.7, momentum=0.9, nesterov=True)
    with algorithm.join(register(), name="alone", settings=SETTINGS):
        for number in range(3):
            with torch.no_grad():
                for one in network.parameters():
                    one.add_(0.01 * (number + 1))
            expected.grad = expected.detach() - flat(network)
            outer.step()
            algorithm.meet()
            torch.testing.assert_close(flat(network), expected.detach())


def test_a_checkpoint_goes_on_where_it_was_made_and_another_models_is_refused() -> None:
    network, other = model(), model()
    algorithm = DiLoCo(network.parameters(), every=1)
    train(algorithm, network, torch.optim.SGD(network.parameters(), lr=0.1), register())
    again = DiLoCo(other.parameters(), every=1)
    again.load_state_dict(algorithm.state_dict())
    assert torch.equal(flat(network), flat(other))
    with pytest.raises(MisuseError, match="of another model"):
        DiLoCo(torch.nn.Linear(2, 2).parameters()).load_state_dict(algorithm.state_dict())


def test_who_ends_with_a_meeting_does_not_meet_again_and_who_has_learned_since_does() -> None:
    network = model()
    algorithm = DiLoCo(network.parameters(), every=2)
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    learned: list[torch.Tensor] = []
    inner.register_step_post_hook(lambda *_: learned.append(flat(network)))
    for steps, rounds in ((4, 2), (3, 4)):
        train(algorithm, network, inner, register(), steps=steps, after=lambda _: algorithm.finish())
        assert algorithm.state_dict()["rounds"] == rounds
        assert torch.equal(flat(network), learned[-1])  # the mean of one's own parameters


def test_who_ends_after_a_meeting_that_failed_keeps_what_it_has_learned() -> None:
    network = model()
    algorithm, inner = DiLoCo(network.parameters(), every=2), sgd(network)
    with algorithm.join(register(), name="alone", settings=SETTINGS, timeout_s=0.2) as group:
        for _ in range(3):
            step_once(network, inner, algorithm)
        group.members_min = 2
        with pytest.raises(TimedOutError):
            step_once(network, inner, algorithm)
        learned = flat(network)
        group.members_min = 1
        algorithm.finish()
        assert torch.equal(flat(network), learned)


def test_who_joins_gets_the_state_between_two_meetings() -> None:
    where, ended = register(), threading.Event()

    def run(rank: int) -> None:
        network = model()
        algorithm, inner = DiLoCo(network.parameters(), every=10**6), sgd(network)
        assert rank == 0 or wait_until(lambda: where.view() is not None)
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS, join_timeout_s=20) as group:
            if rank == 0:
                step_until(ended, lambda: step_once(network, inner, algorithm), pause_s=0.02)
            ended.set()
            assert group.step == 0

    in_threads(2, run)


def test_who_ends_with_a_regular_meeting_holds_what_those_hold_who_end_between_two() -> None:
    networks, where = [model() for _ in range(2)], register()

    def run(rank: int) -> None:
        algorithm, steps = DiLoCo(networks[rank].parameters(), every=4), 8 - rank
        inner = sgd(networks[rank])
        train(
            algorithm, networks[rank], inner, where, rank=rank, size=2, steps=steps, after=lambda _: algorithm.finish()
        )

    in_threads(2, run)
    assert torch.equal(flat(networks[0]), flat(networks[1]))


def test_who_was_late_for_the_last_meeting_ends_with_what_the_others_have() -> None:
    size, steps, where = 3, 10, register()
    networks = [model() for _ in range(size)]
    algorithms = [DiLoCo(one.parameters(), every=1, quorum=2) for one in networks]

    def run(rank: int) -> None:
        network, algorithm, inner = networks[rank], algorithms[rank], sgd(networks[rank])
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
            while group.step < steps:  # not so many times: who is late on a busy machine takes two results at once
                learn(network, inner, group.step * size + rank)
                if rank == size - 1 and group.step == steps - 1:
                    wait_until(lambda: algorithms[0].last is not None and algorithms[0].last.step == steps)
                with algorithm.step():
                    inner.step()
            algorithm.finish()
            assert group.step == steps

    in_threads(size, run)
    assert all(torch.equal(flat(networks[0]), flat(one)) for one in networks)


@pytest.mark.parametrize("kind", [DiLoCo, StreamingDiLoCo])
def test_members_that_end_between_two_meetings_end_with_the_mean_and_may_train_on(
    kind: type[DiLoCo] | type[StreamingDiLoCo],
) -> None:
    size, where = 2, register()
    networks = [model() for _ in range(size)]
    options: dict[str, Any] = {} if kind is DiLoCo else {"fragments": 2, "overlap": 1, "compression": ""}
    trained: dict[int, torch.Tensor] = {}
    ended: dict[int, list[torch.Tensor]] = {}

    def run(rank: int) -> None:
        network, inner = networks[rank], sgd(networks[rank])
        algorithm = kind(network.parameters(), every=4, **options)

        def end(_: VolatileGroup) -> None:
            trained[rank] = flat(network)
            algorithm.finish()
            ended[rank] = [flat(network)]
            for _number in range(6):
                step_once(network, inner, algorithm)
            algorithm.finish()
            ended[rank] += [flat(network), algorithm.state_dict()["global"]]

        train(algorithm, network, inner, where, rank=rank, size=size, steps=10, after=end)

    in_threads(size, run)
    torch.testing.assert_close(ended[0][0], (trained[0] + trained[1]) / 2)
    for one, other in zip(ended[0], ended[1], strict=True):
        assert torch.equal(one, other)


def test_what_a_slower_member_learned_counts_once_from_where_the_others_are_then() -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    algorithms = [DiLoCo(one.parameters(), every=1, outer_rate=1.0, outer_momentum=0.0, quorum=2) for one in networks]
    found: dict[int, torch.Tensor] = {}
    slow: list[tuple[int, bool]] = []
    brought: dict[int, tuple[int, int]] = {}
    ended = threading.Event()

    def made_up() -> int:
        """How often the slow member counted in the step after the one that it was late for."""
        return sum(counted and step - before > 1 for (before, _), (step, counted) in pairwise(slow))

    def run(rank: int) -> None:
        algorithm, learned = algorithms[rank], 0

        def step() -> None:
            """The slow member learns ones in each round, and the others nothing."""
            nonlocal learned
            with torch.no_grad(), algorithm.step():
                for one in networks[rank].parameters():
                    one.add_(float(rank == 2))
            last = algorithm.last
            assert last is not None
            found[last.step] = algorithm.state_dict()["global"]
            if rank == 2:
                slow.append((last.step, last.contributed))
                learned += 1
                if last.contributed:
                    brought[last.step], learned = (learned, len(last.members)), 0

        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            step_beside_a_slower_one(
                group, step, slower=rank == 2, size=size, enough=lambda: made_up() >= 4, ended=ended
            )

    in_threads(size, run)
    followed = [step for step in found if step - 1 in found]
    assert len(followed) >= 8
    for step in followed:
        before, after = found[step - 1], found[step]
        rounds, members = brought.get(step, (0, 1))
        torch.testing.assert_close((after - before) * members, torch.full_like(before, rounds))


@pytest.mark.parametrize("is_left_out", [False, True])
def test_nobody_waits_for_the_end_of_a_long_round_to_learn(is_left_out: bool) -> None:
    """Neither who comes new, nor who finds at a step of its own that the others have gone on without it."""
    where, size = register(), 3 if is_left_out else 2
    begun = threading.Barrier(3)

    def run(rank: int) -> None:
        network = model()
        inner, algorithm = sgd(network), DiLoCo(network.parameters(), every=10**6)
        step = functools.partial(step_once, network, inner, algorithm)
        if rank >= size:
            begun.wait(60.0)
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
            if rank < size:
                algorithm.meet()
                begun.wait(60.0)
            if rank < 2:
                wait_until(lambda: group.view.joining or step(), pause_s=0.01, limit_s=60.0)
                assert group.step == 1, "a round has ended"
            elif is_left_out:
                before = group.member
                group.lose_state("for this test")
                step()
                assert group.member != before
            while group.step < 6:
                algorithm.meet()

    in_threads(3, run)


def test_what_a_member_learned_before_it_was_left_out_stays_in_its_model() -> None:
    """It was in the last meeting, and what it has learned since then is in none."""
    where, size, learned = register(), 3, 3
    met, left_out, kept = threading.Barrier(size), threading.Event(), list[torch.Tensor]()

    def run(rank: int) -> None:
        network = model()
        algorithm = DiLoCo(network.parameters(), every=10**6)

        def step() -> None:
            with torch.no_grad(), algorithm.step():
                for one in network.parameters():
                    one.add_(float(rank == 2))

        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
            algorithm.meet()
            met.wait(60.0)
            if rank < 2:
                wait_until(lambda: left_out.is_set() or group.view.joining or step(), pause_s=0.01, limit_s=60.0)
            else:
                before, began = group.member, flat(network)
                for _ in range(learned):
                    step()
                group._control.links.close()  # as of a host that was out of reach, and is back
                wait_until(lambda: where.view().epoch > group.view.epoch)
                group._control._heard(before, Look())
                wait_until(lambda: group._control.failure)
                left_out.set()
                step()
                kept.append(flat(network) - began)
                assert group.member != before
            while group.step < 6:
                algorithm.meet()

    in_threads(size, run)
    torch.testing.assert_close(kept[0], torch.full_like(kept[0], learned + 1.0))


def test_all_ranks_of_a_site_get_what_it_goes_on_from_after_it_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    where, size, joined = register(), 3, threading.Event()
    met, handed = threading.Barrier(size), list[list[bool]]()
    monkeypatch.setattr(Site, "_hand_over", lambda _site, changed: handed.append(changed))

    def run(rank: int) -> None:
        algorithm = DiLoCo(model().parameters(), every=10**6)

        def step(by: DiLoCo | Site = algorithm) -> None:
            with by.step():
                pass

        with (site := Site(algorithm)).join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
            assert group is not None
            algorithm.meet()
            met.wait(60.0)
            if rank < 2:
                wait_until(lambda: joined.is_set() or group.view.joining or step(), pause_s=0.01, limit_s=60.0)
            else:
                group.lose_state("for this test")
                step(site)
                joined.set()
            while group.step < 6:
                algorithm.meet()

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        in_threads(size, run)
    finally:
        dist.destroy_process_group()
    assert [True] * 4 in handed[size:-size]
