"""The algorithms by operation and name, and the schedules that they make, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from transport.collectives.algorithms import direct
from transport.collectives.problem import Operation, Plan, Problem
from transport.collectives.schedule import Schedule

Algorithm: TypeAlias = Callable[[Problem, Plan], Schedule]

SCHEDULES_KEPT = 64
"""A training step has some dozens of shapes; a schedule of 64 MiB and 4 ranks takes some hundred kilobytes."""

ALGORITHMS: Mapping[Operation, Mapping[str, Algorithm]] = {
    Operation.ALLREDUCE: {"direct": direct.all_reduce},
    Operation.BROADCAST: {"direct": direct.broadcast},
    Operation.REDUCE: {"direct": direct.reduce},
    Operation.ALL_GATHER: {"direct": direct.exchange},
    Operation.REDUCE_SCATTER: {"direct": direct.reduce_scatter},
    Operation.GATHER: {"direct": direct.exchange},
    Operation.SCATTER: {"direct": direct.exchange},
    Operation.ALL_TO_ALL: {"direct": direct.exchange},
    Operation.BARRIER: {"direct": direct.barrier},
}


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    """The schedule of one rank's part; the same object for the same arguments."""
    return ALGORITHMS[problem.operation][plan.algorithm](problem, plan)
