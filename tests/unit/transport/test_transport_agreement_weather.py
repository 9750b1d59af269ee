"""Agreements while messages are late, lost and doubled, and ranks stop: nobody hangs, and every sum is right."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from memory_engine import MemoryNetwork
from patience import LIMIT_S, wait_until

from hive_qos.errors import CancelledError, ConnectionLostError, TimedOutError
from transport.collectives.planning.link_rates import LinkReport

SEEDS = range(6)
RANKS = 4
OPERATIONS = 80
STEP_S = 0.002


def double(network: MemoryNetwork, sender: str, receiver: str) -> None:
    """What is held on this way arrives, and its sender does not learn it: it will send it again."""
    with network.lock:
        network.held.discard((sender, receiver))
        for one in network.waiting:
            if (one.sender.node, one.receiver.node) == (sender, receiver):
                one.receiver.deliver(one.sender, one.header, one.payload)
        network.cut(sender, receiver)


@contextmanager
def weather(network: MemoryNetwork, seed: int) -> Iterator[None]:
    """Hold what two ranks send each other again and again; then let it go, lose it, or double it."""
    choose, over = random.Random(seed), threading.Event()

    def blow() -> None:
        while not over.wait(STEP_S):
            way = tuple(f"rank-{rank}" for rank in choose.sample(range(RANKS), 2))
            network.hold(*way)
            over.wait(STEP_S * choose.random())
            match choose.choice(["late", "late", "lost", "doubled"]):
                case "lost":
                    network.cut(*way)
                case "doubled":
                    double(network, *way)
            network.release(*way)

    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def with_links_that_change(group: Any, seed: int) -> Any:
    """Its rank says of its link what is another thing each time, so that each agreement makes a new table."""
    choose = random.Random(1000 * seed + group.rank)

    def report(_far: frozenset[int]) -> LinkReport:
        rate = choose.choice([10**7, 10**8, 10**9])
        return LinkReport(rate, rate, 0, 0, {})

    group._runtime._rates.report = report
    return group


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_weather_all_ranks_agree_on_the_same_tables_and_every_sum_is_right(make_world, seed):
    world = make_world(RANKS, reconnect_s=LIMIT_S, chunk_bytes=16 * 1024, algorithm="weighted")

    def body(group: Any) -> None:
        with_links_that_change(group, seed)
        choose = random.Random(seed)
        waiting = []
        for number in range(OPERATIONS):
            tensor = np.full(choose.choice([10, 20_000]), group.rank + number, "f4")
            waiting.append((number, tensor, group.allreduce(tensor)))
            if len(waiting) > choose.choice([1, 4, 12]):
                number, tensor, work = waiting.pop(0)
                work.wait(LIMIT_S)
                assert (tensor == sum(rank + number for rank in range(RANKS))).all()
        for number, tensor, work in waiting:
            work.wait(LIMIT_S)
            assert (tensor == sum(rank + number for rank in range(RANKS))).all()

    def tables() -> set[str]:
        return {json.dumps(group.explain()["network"]) for group in world.groups}

    with weather(world.network, seed):
        world.results(body)
    wait_until(lambda: len(tables()) == 1)  # the last agreement may end later than all operations
    assert json.loads(tables().pop())["number"] > 1, "the links changed, and so did the table"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["dies", "leaves", "calls no more"])
def test_a_rank_that_stops_in_the_middle_of_agreements_is_named_and_nobody_hangs(make_world, how, seed):
    world = make_world(RANKS, reconnect_s=0.3, timeout_s=3.0, algorithm="weighted")
    stops = random.Random(seed).randrange(1, 12)

    def body(group: Any) -> str:
        with_links_that_change(group, seed)
        for number in range(OPERATIONS):
            if group.rank == RANKS - 1 and number == stops:
                if how == "dies":
                    world.network.kill(f"rank-{group.rank}")
                elif how == "leaves":
                    group.close()
                return "stopped"
            try:
                group.allreduce(np.ones(20_000, "f4")).wait(LIMIT_S)
            except (ConnectionLostError, CancelledError, TimedOutError) as error:
                return str(error)
        return "nothing happened"

    errors = world.results(body)[:-1]
    assert "nothing happened" not in errors, errors
    assert any(re.search(rf"rank[- 0-9,]*\b{RANKS - 1}\b", error) for error in errors), errors
