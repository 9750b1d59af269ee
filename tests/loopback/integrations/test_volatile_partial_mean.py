"""Synchronous training with whoever is there is that of DDP, and no late gradient is lost."""

from __future__ import annotations

import threading

import pytest
import torch
from patience import wait_until
from volatile_members import SETTINGS, adamw, batch, flat, in_threads, learn, model, register, sgd, step_until

from integrations.volatile import PartialMean
from transport.volatile.group import VolatileGroup

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
            wait_until(lambda: rank == 1 or len(seen[1]) >= together or step())

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


def test_what_a_late_member_did_not_bring_to_a_step_it_brings_to_the_next_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = model()
    algorithm = PartialMean(network.parameters(), optimizer=sgd(network))
    left_out, brought = {2, 3, 5}, []
    monkeypatch.setattr(algorithm, "_counted", lambda committed: committed.step not in left_out)

    def step(group: VolatileGroup, gradient: torch.Tensor) -> None:
        algorithm._all.write_gradients(gradient)
        with algorithm.step():
            if group.step not in left_out:
                brought.append(algorithm._all.read_gradients())

    gradients = [torch.full((algorithm._all.elems,), 2.0**power) for power in range(6)]
    with algorithm.join(register(), name="late", settings=SETTINGS) as group:
        for one in gradients:
            step(group, one)
    assert torch.equal(torch.stack(brought).sum(0), torch.stack(gradients).sum(0))
    assert [float(one[0]) for one in brought] == [1.0, 2.0 + 4.0 + 8.0, 16.0 + 32.0]


def test_with_a_quorum_members_go_on_without_a_late_one_which_brings_all_that_it_has_later() -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    inners = [torch.optim.SGD(one.parameters(), lr=0.0) for one in networks]
    algorithms = [
        PartialMean(network.parameters(), optimizer=inner, quorum=2)
        for network, inner in zip(networks, inners, strict=True)
    ]
    brought: dict[int, float] = {}
    calls: list[bool] = []
    ended = threading.Event()

    def run(rank: int) -> None:
        algorithm = algorithms[rank]

        def step() -> None:
            """The last member's gradients are ones, the others' zeros."""
            algorithm._all.write_gradients(torch.full((algorithm._all.elems,), float(rank == 2)))
            with algorithm.step():
                inners[rank].step()
            last = algorithm.last
            assert last is not None
            brought[last.step] = float(algorithm._all.read_gradients()[0]) * len(last.members)
            if rank == 2:
                calls.append(last.contributed)

        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            wait_until(lambda: len(group.view.members) == size or step(), pause_s=0.05)
            if rank < 2:
                step_until(ended, step, pause_s=0.05)
                return
            for _ in range(6):
                step()
            wait_until(lambda: step() or not calls[-1], pause_s=1.0)
            wait_until(lambda: step() or calls[-1])
            ended.set()

    in_threads(size, run)
    assert not algorithms[2]._late.any()
    assert round(sum(brought.values()), 3) == len(calls)
