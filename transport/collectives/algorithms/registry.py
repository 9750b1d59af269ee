"""The algorithms by operation and name: what each sends, and the schedules that it makes, each made once.

There is no ring: it sends what the direct algorithm sends, in 2 (n-1) latencies instead of 2, and its sums are not in
rank order, so that a run would have other bits after a change of plan. As measured (docs/log/transport.md), it takes 0
to 12 % less time with 4 ranks at 1 Gbit/s, and at 100 Mbit/s a fifth more of the processor for none.

Gather, scatter and all-to-all leave no choice: what a rank has for another goes there. "weighted" is the direct
algorithm with weights in its plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hive_qos.errors import ConfigurationError
from transport.collectives.algorithms import direct, doubling, exchange, tree, two_level
from transport.collectives.algorithms.traffic import Traffic
from transport.collectives.problem import Operation, Plan, Problem
from transport.collectives.schedule import Schedule

SCHEDULES_KEPT = 64
"""A training step has some dozens of shapes; a schedule of 64 MiB and 4 ranks takes some hundred kilobytes."""


@dataclass(frozen=True)
class Algorithm:
    """One way to do one operation.

    Args:
        build: makes one rank's schedule.
        traffic: what all ranks send, the same whichever rank asks.
        encodes: whether it knows codecs.
    """

    build: Callable[[Problem, Plan], Schedule]
    traffic: Callable[[Problem, Plan], Traffic]
    encodes: bool = False


ALGORITHMS: Mapping[Operation, Mapping[str, Algorithm]] = {
    Operation.ALLREDUCE: {
        "direct": Algorithm(direct.all_reduce, direct.all_reduce_traffic, encodes=True),
        "weighted": Algorithm(direct.all_reduce, direct.all_reduce_traffic, encodes=True),
        "two_level": Algorithm(two_level.all_reduce, two_level.all_reduce_traffic, encodes=True),
        "exchange": Algorithm(exchange.all_reduce, exchange.all_reduce_traffic, encodes=True),
        "doubling": Algorithm(doubling.all_reduce, doubling.all_reduce_traffic),
    },
    Operation.BROADCAST: {
        "direct": Algorithm(direct.broadcast, direct.broadcast_traffic),
        "weighted": Algorithm(direct.broadcast, direct.broadcast_traffic),
        "two_level": Algorithm(two_level.broadcast, two_level.broadcast_traffic),
        "tree": Algorithm(tree.broadcast, tree.broadcast_traffic),
    },
    Operation.REDUCE: {
        "direct": Algorithm(direct.reduce, direct.reduce_traffic, encodes=True),
        "weighted": Algorithm(direct.reduce, direct.reduce_traffic, encodes=True),
        "two_level": Algorithm(two_level.reduce, two_level.reduce_traffic, encodes=True),
    },
    Operation.REDUCE_SCATTER: {
        "direct": Algorithm(direct.reduce_scatter, direct.reduce_scatter_traffic, encodes=True),
        "two_level": Algorithm(two_level.reduce_scatter, two_level.reduce_scatter_traffic, encodes=True),
    },
    Operation.ALL_GATHER: {
        "direct": Algorithm(direct.all_gather, direct.all_gather_traffic, encodes=True),
        "two_level": Algorithm(two_level.all_gather, two_level.all_gather_traffic, encodes=True),
        "doubling": Algorithm(doubling.all_gather, doubling.all_gather_traffic),
    },
    Operation.BARRIER: {
        "direct": Algorithm(direct.barrier, direct.barrier_traffic),
        "doubling": Algorithm(doubling.barrier, doubling.barrier_traffic),
    },
}
NAMES = tuple(dict.fromkeys(name for algorithms in ALGORITHMS.values() for name in algorithms))


def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    """The schedule of one rank's part; the same object for the same arguments."""
    if problem.turn and plan.algorithm != "direct":  # for the others all turns are one
        problem = replace(problem, turn=0)
    return _built(problem, plan)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _built(problem: Problem, plan: Plan) -> Schedule:
    if problem.operation not in ALGORITHMS:
        return direct.exchange(problem, plan)
    return ALGORITHMS[problem.operation][plan.algorithm].build(problem, plan)


def check_name(name: str) -> str:
    """The name of an algorithm, or "" for the best one.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if name and name not in NAMES:
        raise ConfigurationError("HIVE_ALGORITHM", name, f"one of {', '.join(NAMES)}, or nothing for the best")
    return name
