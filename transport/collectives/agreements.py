"""Runs a group's agreements on its links as collectives beside the others, and holds back what waits for their end.

An agreement is an all-gather of one small row a rank, in a group of its own beside the group that it is for: so losses,
timeouts and ranks that do not take part end it as they end any collective, and what waits for it with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hive_qos.errors import HiveError
from transport.collectives import calls
from transport.collectives.calls import Call, CallContext
from transport.collectives.membership import Membership, agreement_group
from transport.collectives.planning.cost_model import Choice
from transport.collectives.planning.link_rates import LinkReport
from transport.collectives.planning.planner import Planner
from transport.collectives.problem import Problem
from transport.engine.base import Priority
from transport.work import Work


@dataclass(frozen=True)
class Request:
    """A call that got its number from its group.

    Args:
        began_s: when it was called, on the monotonic clock.
    """

    call: Call
    number: int
    work: Work
    began_s: float
    timeout_s: float
    priority: Priority

    @property
    def deadline_s(self) -> float:
        """When it times out."""
        return self.began_s + self.timeout_s


class Agreements:
    """See the module. In the transport's thread.

    Args:
        groups: by name, those of agreements among them.
        report: what this rank measured of its link, given the ranks that are at other sites.
        start: begins an agreement's own collective.
        release: goes on with a request that was held back; with an error where its agreement failed.
    """

    def __init__(
        self,
        *,
        groups: Mapping[str, Membership],
        report: Callable[[frozenset[int]], LinkReport],
        start: Callable[[Request], None],
        release: Callable[[Request, HiveError | None], None],
    ) -> None:
        self._groups = groups
        self._report = report
        self._start = start
        self._release = release
        self._held: dict[str, list[Request]] = {}

    def choose(self, request: Request, problem: Problem, planner: Planner) -> Choice | None:
        """How a request is done; None where it is held back. Begins an agreement where one is due."""
        context = request.call.context
        choice = planner.choice(problem, request.number)
        if choice is None:
            self._held.setdefault(context.group, []).append(request)
        elif planner.is_due(request.number):
            self._agree(request, planner)
        return choice

    def _agree(self, request: Request, planner: Planner) -> None:
        context = request.call.context
        name = agreement_group(context.group)
        group = self._groups[name]
        number = group.next_number
        group.next_number += 1
        sites, now_s = planner.table.sites, time.monotonic()
        far = frozenset(group.ranks[rank] for rank, site in enumerate(sites) if site != sites[context.rank])
        row = planner.begin(request.number, self._report(far), now_s=now_s)
        rows = list(np.zeros((context.size, len(row)), dtype=np.int64))
        call = calls.all_gather(CallContext(group=name, rank=context.rank, size=context.size), rows, row)
        work = Work(f"agreement {number} on the links of group {context.group}")

        def ended(work: Work) -> None:
            error = work.exception()
            if error is None:
                planner.agreed(rows)
            else:
                planner.failed()
            for one in self._held.pop(context.group, []):
                self._release(one, error)

        work.add_done_callback(ended)
        self._start(Request(call, number, work, now_s, request.timeout_s, Priority.CONTROL))

    def late(self, now_s: float) -> Iterator[Request]:
        """Take out what was held back beyond its deadline."""
        for held in self._held.values():
            for one in [one for one in held if now_s >= one.deadline_s]:
                held.remove(one)
                yield one

    def next_deadline_s(self) -> float:
        """The first of what is held back."""
        return min((one.deadline_s for held in self._held.values() for one in held), default=float("inf"))

    def is_holding(self, group: str) -> bool:
        """Whether something of a group is held back."""
        return bool(self._held.get(group))
