"""Runs a group's agreements on its links as collectives beside the others, and holds back what waits for their end.

An agreement is an all-gather of one small row a rank, in a group of its own beside the group that it is for: so losses,
timeouts and ranks that do not take part end it as they end any collective. What waits for it goes on as before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transport.collectives import calls
from transport.collectives.aborts import Key
from transport.collectives.calls import Call, CallContext
from transport.collectives.membership import Membership, agreement_group
from transport.collectives.planning.cost_model import Choice
from transport.collectives.planning.planner import Planner, Report
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
        release: goes on with a request that was held back.
        is_early: whether another rank has begun an operation, or given it up, that this rank has not begun.
        refuse: takes no part in an agreement, given its group's name and its number.
    """

    def __init__(
        self,
        *,
        groups: Mapping[str, Membership],
        report: Report,
        start: Callable[[Request], None],
        release: Callable[[Request], None],
        is_early: Callable[[Key], bool],
        refuse: Callable[[str, int], None],
    ) -> None:
        self._groups = groups
        self._report = report
        self._start = start
        self._release = release
        self._is_early = is_early
        self._refuse = refuse
        self._held: dict[str, list[Request]] = {}
        self._latest: dict[str, tuple[CallContext, float]] = {}

    def choose(self, request: Request, problem: Problem, planner: Planner) -> Choice | None:
        """How a request is done; None where it is held back. Begins an agreement where one is due."""
        context = request.call.context
        self._latest[context.group] = context, request.timeout_s
        # First: an operation that was given up may have left its agreement to this one.
        invited = self._is_invited(context.group)
        if planner.is_due(request.number, self._report, now_s=time.monotonic(), invited=invited):
            self._agree(context, request.number, planner, timeout_s=request.timeout_s)
        choice = planner.choice(problem, request.number)
        if choice is None:
            self._held.setdefault(context.group, []).append(request)
        return choice

    def invited(self, group: str) -> None:
        """Another rank has begun an agreement: take part, for it holds back what we wait for."""
        context, timeout_s = self._latest.get(group, (None, 0.0))
        membership = self._groups[group]
        planner, number = membership.planner, membership.begun
        if context is None or planner is None or not self._is_invited(group):
            return
        if membership.closed:
            links = self._groups[agreement_group(group)]
            links.next_number += 1
            self._refuse(agreement_group(group), links.next_number - 1)
            return
        if planner.is_due(number, self._report, now_s=time.monotonic(), invited=True):
            self._agree(context, number, planner, timeout_s=timeout_s)

    def _is_invited(self, group: str) -> bool:
        name = agreement_group(group)
        return name in self._groups and self._is_early((name, self._groups[name].next_number))

    def _agree(self, context: CallContext, operation: int, planner: Planner, *, timeout_s: float) -> None:
        name = agreement_group(context.group)
        group = self._groups[name]
        number = group.next_number
        group.next_number += 1
        row = planner.begin(operation, self._report)
        rows = list(np.zeros((context.size, len(row)), dtype=np.int64))
        call = calls.all_gather(CallContext(group=name, rank=context.rank, size=context.size), rows, row)
        work = Work(f"agreement {number} on the links of group {context.group}")

        def ended(work: Work) -> None:
            if work.exception() is None:
                planner.agreed(rows)
            else:
                planner.failed()
            for one in self._held.pop(context.group, []):
                self._release(one)
            self.invited(context.group)

        work.add_done_callback(ended)
        self._start(Request(call, number, work, time.monotonic(), timeout_s, Priority.CONTROL))

    def take(self, is_meant: Callable[[Request], bool]) -> Iterator[Request]:
        """Take out some of what is held back."""
        for held in self._held.values():
            for one in [one for one in held if is_meant(one)]:
                held.remove(one)
                yield one

    def next_deadline_s(self) -> float:
        """The first of what is held back."""
        return min((one.deadline_s for held in self._held.values() for one in held), default=float("inf"))

    def forget(self, group: str) -> None:
        """Drop what is known of a group that was closed."""
        self._latest.pop(group, None)

    def holds(self, key: Key) -> bool:
        """Whether an operation is held back."""
        return any(one.number == key[1] for one in self._held.get(key[0], ()))

    def is_holding(self, group: str) -> bool:
        """Whether something of a group is held back."""
        return bool(self._held.get(group))
