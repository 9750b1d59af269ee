"""Ranks that do not call the same thing, over real engines: each learns what was called, whichever rank differs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from engine_cases import need
from patience import LIMIT_S

from hive_qos.errors import PeerError
from transport import Group, MemoryRendezvous, Priority, ReduceOp, Settings, Work
from transport.collectives.algorithms.registry import ALGORITHMS, NAMES
from transport.collectives.in_flight import LATE_STEPS
from transport.collectives.planning.cost_model import operation_name

RANKS = 4
SETTINGS = Settings(listen="127.0.0.1", broker="off", job_secret=b"secret of the test", chunk_bytes=16 * 1024)
LARGE = 20_000
TOGETHER = 16
"""Pairs of calls that run at once: most wait for half a second until one rank asks another."""
TOLD_S = 0.1
"""A message that came too late for its operation is told of a moment later (20 ms, and the pace of a busy machine)."""
Begin = Callable[[Group], Work]


def zeros(elems: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(elems, dtype)


def parts(elems: int) -> list[np.ndarray]:
    return [zeros(elems) for _ in range(RANKS)]


def all_to_all(sizes: Callable[[int, int], int]) -> Begin:
    """`sizes` of the sender and the receiver, as this rank sees them."""

    def begin(group: Group) -> Work:
        rank, ranks = group.rank, range(RANKS)
        own = [zeros(sizes(rank, to)) for to in ranks]
        places = [zeros(own[rank].size if origin == rank else sizes(origin, rank)) for origin in ranks]
        return group.all_to_all(places, own)

    return begin


CALLS: dict[str, Begin] = {
    "all-reduce": lambda group: group.allreduce(zeros(10)),
    "all-reduce, other operator": lambda group: group.allreduce(zeros(10), ReduceOp.MAX),
    "all-reduce, other dtype": lambda group: group.allreduce(zeros(10, "i4")),
    "all-reduce, large": lambda group: group.allreduce(zeros(LARGE)),
    "all-reduce, larger": lambda group: group.allreduce(zeros(2 * LARGE)),
    "all-reduce, int8": lambda group: group.allreduce(zeros(LARGE), compression="int8"),
    "all-reduce, int4": lambda group: group.allreduce(zeros(LARGE), compression="int4"),
    "all-reduce, empty": lambda group: group.allreduce(zeros(0)),
    "broadcast from 0": lambda group: group.broadcast(zeros(10), 0),
    "broadcast from 1": lambda group: group.broadcast(zeros(10), 1),
    "broadcast, large": lambda group: group.broadcast(zeros(LARGE), 0),
    "broadcast, empty": lambda group: group.broadcast(zeros(0), 0),
    "reduce to 0": lambda group: group.reduce(zeros(10), 0),
    "reduce to 1": lambda group: group.reduce(zeros(10), 1),
    "reduce, empty": lambda group: group.reduce(zeros(0), 0),
    "all-gather": lambda group: group.all_gather(parts(5), zeros(5)),
    "all-gather, large": lambda group: group.all_gather(parts(LARGE), zeros(LARGE)),
    "all-gather, empty": lambda group: group.all_gather(parts(0), zeros(0)),
    "reduce-scatter": lambda group: group.reduce_scatter(zeros(5), parts(5)),
    "reduce-scatter, large": lambda group: group.reduce_scatter(zeros(LARGE), parts(LARGE)),
    "reduce-scatter, empty": lambda group: group.reduce_scatter(zeros(0), parts(0)),
    "gather to 0": lambda group: group.gather(parts(5) if group.rank == 0 else None, zeros(5), 0),
    "gather to 1": lambda group: group.gather(parts(5) if group.rank == 1 else None, zeros(5), 1),
    "gather, empty": lambda group: group.gather(parts(0) if group.rank == 0 else None, zeros(0), 0),
    "scatter from 0": lambda group: group.scatter(zeros(5), parts(5) if group.rank == 0 else None, 0),
    "scatter from 1": lambda group: group.scatter(zeros(5), parts(5) if group.rank == 1 else None, 1),
    "scatter, empty": lambda group: group.scatter(zeros(0), parts(0) if group.rank == 0 else None, 0),
    "all-to-all": all_to_all(lambda _from, _to: 5),
    "all-to-all, larger": all_to_all(lambda _from, _to: 6),
    "all-to-all, empty": all_to_all(lambda _from, _to: 0),
    "barrier": lambda group: group.barrier(),
}
FORCIBLE = {name: CALLS["broadcast, large" if name == "tree" else "all-reduce, large"] for name in NAMES}
"""A call of each algorithm."""
ODD = [(0,), (1,), (3,), (0, 2)]
"""Ranks that call the second one of two."""


class World:
    def __init__(self, engine: str, odd: dict[str, Any] | None = None) -> None:
        """`odd`: settings of rank 1 alone."""
        store = MemoryRendezvous()

        def connect(rank: int) -> Group:
            settings = dataclasses.replace(SETTINGS, engine=engine, **(odd if odd and rank == 1 else {}))
            return Group.connect(store, rank=rank, world_size=RANKS, settings=settings, timeout_s=90.0)

        self._pool = ThreadPoolExecutor(RANKS)
        self.groups = list(self._pool.map(connect, range(RANKS)))

    def run(self, body: Callable[[Group], Any]) -> list[Any]:
        return list(self._pool.map(body, self.groups))

    def close(self) -> None:
        self.run(Group.close)
        self._pool.shutdown()


@pytest.fixture(params=["native", "aioquic"], scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def world(engine: str) -> Iterator[World]:
    world = World(engine)
    yield world
    world.close()


def outcomes(group: Group, calls: list[tuple[Begin, Begin, tuple[int, ...]]], algorithm: str | None) -> list[str]:
    """What comes of each pair of calls, in a group of its own.

    Who was through before it could know is told by what it calls next. That may end well too: a barrier tells that all
    have begun it, not that they have read what was sent to them before.
    """
    groups = [group.subgroup(range(RANKS), algorithm=algorithm) for _ in calls]
    works = []
    for (one, other, odd), sub in zip(calls, groups, strict=True):
        works.append((other if group.rank in odd else one)(sub))
    found = []
    for work, sub in zip(works, groups, strict=True):
        try:
            work.wait()
            time.sleep(TOLD_S)
            for _ in range(LATE_STEPS // 2):
                sub.barrier().wait()
            found.append("none")
        except PeerError as error:
            found.append(str(error))
    return found


def kind_of(call: str) -> str:
    return call.split(",")[0].split(" ")[0]


@pytest.mark.parametrize("algorithm", ["", *NAMES])
def test_two_calls_of_one_operation_that_differ_are_both_named_on_every_rank(world, algorithm):
    """Of the same kind, or one of them empty: what moves nothing must not pass for what never came."""
    kinds = {operation_name(one).replace("_", "-") for one, names in ALGORITHMS.items() if algorithm in names}
    names = [
        (one, other)
        for one, other in itertools.combinations(CALLS, 2)
        if kind_of(one) == kind_of(other) and (not algorithm or kind_of(one) in kinds)
    ]
    cases = [(*pair, odd) for pair, odd in zip(names, itertools.cycle(ODD))]
    calls = [(CALLS[one], CALLS[other], odd) for one, other, odd in cases]
    results = world.run(
        lambda group: [
            error
            for first in range(0, len(calls), TOGETHER)
            for error in outcomes(group, calls[first : first + TOGETHER], algorithm)
        ]
    )
    wrong = {
        case: errors
        for case, errors in zip(cases, zip(*results, strict=True), strict=True)
        if any(error.count(" called ") != 2 for error in errors)
    }
    assert not wrong, "\n".join(map(str, wrong.items()))


@pytest.mark.parametrize("algorithm", NAMES)
def test_an_algorithm_that_one_rank_alone_was_given_is_named_at_the_first_operation(engine, algorithm):
    """Also where the others would take the same by themselves: they would not later."""
    with closing(World(engine, {"algorithm": algorithm})) as world:
        for error in world.run(
            lambda group: outcomes(group, [(FORCIBLE[algorithm], FORCIBLE[algorithm], ())], None)[0]
        ):
            assert "(forced)" in error
            assert error.count(" called ") == 2


def test_ranks_of_which_one_alone_names_its_site_hold_one_table(engine):
    with closing(World(engine, {"site": "attic"})) as world:
        results = world.run(lambda group: (sum_of(group, zeros(LARGE) + group.rank), group.explain()["network"]))
    assert {total for total, _ in results} == {6.0}
    assert len({json.dumps(network) for _, network in results}) == 1


def sum_of(group: Group, tensor: np.ndarray, **options: Any) -> float:
    for _ in range(4):  # until links are agreed on
        group.barrier().wait(LIMIT_S)
    group.allreduce(tensor, **options).wait(LIMIT_S)
    assert len(set(tensor.tolist())) == 1
    return float(tensor[0])


def test_priorities_and_feedback_that_differ_change_no_bit_between_ranks(world):
    """Both are each rank's own: when its bytes go, and what it adds to its tensor before it encodes it."""

    def body(group: Group) -> bytes:
        sub = group.subgroup(range(RANKS))
        results = []
        for step in range(4):
            tensor = np.random.default_rng(10 * step + group.rank).standard_normal(LARGE).astype("f4")
            priority = [Priority.GRADIENT, Priority.CONTROL, Priority.BULK, Priority.ACTIVATION][group.rank]
            feedback = [None, "one", "another", "one"][group.rank]
            sub.allreduce(tensor, priority=priority, compression="int8", feedback=feedback).wait(LIMIT_S)
            results.append(tensor.tobytes())
        return b"".join(results)

    assert len(set(world.run(body))) == 1
