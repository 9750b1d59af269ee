"""Members that average in pairs go on without one that is lost, along the shortest links of then."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from patience import wait_until
from torch import nn
from volatile_members import SETTINGS, flat, in_threads, model, register, sgd, step_once

from integrations.volatile import A2CiD2, a2cid2, gossip
from transport.group import Group


def test_members_that_average_in_pairs_go_on_without_one_that_is_lost_and_end_with_the_same_parameters() -> None:
    size, where = 4, register()
    networks = [model() for _ in range(size)]
    algorithms = [A2CiD2(one.parameters()) for one in networks]
    going, ends = threading.Barrier(size), threading.Barrier(size - 1)
    first, second = dict.fromkeys(range(size), 3), dict.fromkeys([0, 2, 3], 1 << 30)

    def run(rank: int) -> None:
        inner = sgd(networks[rank])

        def exchange_until(enough: dict[int, int]) -> None:
            """Train until all have exchanged so often: who stops keeps its partners waiting."""
            wait_until(
                lambda: (
                    step_once(networks[rank], inner, algorithms[rank])
                    or all(algorithms[one].exchanges >= least for one, least in enough.items())
                ),
                what=lambda: [one.exchanges for one in algorithms],
            )

        with algorithms[rank].join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            exchange_until(first)
            going.wait(60.0)
            if rank == 1:
                group.close()
                return
            wait_until(
                lambda: step_once(networks[rank], inner, algorithms[rank]) or len(group.view.members) == 3, pause_s=0.01
            )
            second[rank] = algorithms[rank].exchanges + 3
            exchange_until(second)
            ends.wait(60.0)
            algorithms[rank].finish()

    in_threads(size, run)
    assert torch.equal(flat(networks[0]), flat(networks[2]))
    assert torch.equal(flat(networks[0]), flat(networks[3]))
    assert not torch.equal(flat(networks[0]), flat(model()))


def test_where_all_who_had_the_jobs_parameters_are_lost_the_others_still_average() -> None:
    where = register()
    networks = [model() for _ in range(3)]
    with torch.no_grad():
        for one in networks[2].parameters():
            one.add_(0.01)
    algorithms = [A2CiD2(one.parameters()) for one in networks]
    begun, gone, ends = threading.Event(), threading.Event(), threading.Barrier(2)

    def run(rank: int) -> None:
        inner = sgd(networks[rank])
        if rank:
            assert begun.wait(60.0)
        with algorithms[rank].join(where, name=f"member-{rank}", settings=SETTINGS) as group:
            if rank == 0:
                begun.set()
                wait_until(
                    lambda: step_once(networks[0], inner, algorithms[0]) or len(group.view.workers) == 3, pause_s=0.01
                )
                group.close()  # the others have not exchanged yet
                gone.set()
                return
            assert gone.wait(60.0)
            wait_until(
                lambda: (
                    step_once(networks[rank], inner, algorithms[rank]) or min(e.exchanges for e in algorithms[1:]) > 1
                )
            )
            ends.wait(60.0)
            algorithms[rank].finish()

    in_threads(3, run)
    assert torch.equal(flat(networks[1]), flat(networks[2]))


def test_the_ring_follows_links_that_change_whoever_trains_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first the links from each rank to the next are the shortest, and then an exchange over them takes longest."""
    size, where = 5, register()
    networks = [model() for _ in range(size)]
    algorithms = [A2CiD2(one.parameters()) for one in networks]
    rings: list[set[gossip.Ring]] = [set() for _ in range(size)]
    swap = a2cid2._Pairs._swap

    def costs_us(next_one: int) -> a2cid2.Costs:
        apart = [[(to - by) % size for to in range(size)] for by in range(size)]
        return np.where(np.isin(apart, (1, size - 1)), next_one, 9_000).astype(np.int64)

    def timed(pairs: a2cid2._Pairs, group: Group, partner: int, *of: Any) -> torch.Tensor | None:
        found = swap(pairs, group, partner, *of)
        pairs._took_us[partner] = int(costs_us(50_000)[group.rank, partner])
        rings[group.rank].add(pairs._ring)
        return found

    monkeypatch.setattr(a2cid2, "RING_EVENTS", 6)
    monkeypatch.setattr(a2cid2, "_costs_by_links", lambda *_: costs_us(1_000))
    monkeypatch.setattr(a2cid2._Pairs, "_swap", timed)

    def run(rank: int) -> None:
        algorithm, inner = algorithms[rank], sgd(networks[rank])
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS):
            wait_until(
                lambda: step_once(networks[rank], inner, algorithm) or min(one.exchanges for one in algorithms) >= 20
            )
            for _ in range(50 * (rank == 2)):
                step_once(networks[rank], inner, algorithm)
                time.sleep(0.005)  # so long that exchanges end meanwhile
            algorithm.finish()

    in_threads(size, run)
    before, after = (gossip.ring(costs_us(one).tolist()) for one in (1_000, 50_000))
    assert before != after
    assert rings == [{before, after}] * size
    assert all(torch.equal(flat(networks[0]), flat(one)) for one in networks)


def test_members_that_leave_as_soon_as_they_have_averaged_leave_none_behind() -> None:
    size, where = 4, register()
    networks = [nn.Linear(700, 700) for _ in range(size)]
    algorithms = [A2CiD2(one.parameters()) for one in networks]

    def run(rank: int) -> None:
        for attempt in range(3):
            with algorithms[rank].join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS):
                for _ in range(5):
                    with algorithms[rank].step():
                        pass
                algorithms[rank].finish()
            networks_of_all.wait(60.0)
            assert all(torch.equal(flat(networks[0]), flat(one)) for one in networks), attempt
            networks_of_all.wait(60.0)

    networks_of_all = threading.Barrier(size)
    in_threads(size, run)


def test_members_that_train_on_after_they_have_averaged_exchange_again() -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    algorithms = [A2CiD2(one.parameters()) for one in networks]
    all_have_ended = threading.Barrier(size)

    def run(rank: int) -> None:
        algorithm, inner = algorithms[rank], sgd(networks[rank])
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS):
            for _ in range(2):
                for _ in range(5):
                    step_once(networks[rank], inner, algorithm)
                algorithm.finish()
                all_have_ended.wait(60.0)
                assert all(torch.equal(flat(networks[0]), flat(one)) for one in networks)
                all_have_ended.wait(60.0)

    in_threads(size, run)
