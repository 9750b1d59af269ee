"""All collectives of one rank that are under way: begun, timed out, given up, told to the others. In the loop's thread.

When a collective fails on one rank, that rank tells the other members, so that they do not wait for their own timeouts:
they raise the same lost rank, or `CancelledError` naming who gave up and why. Where that rank still answers, it is the
latter, and names both: one member's word is no proof that a rank is gone. What others say of an operation that this
rank has not begun yet is remembered until it does.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from hive_qos.errors import CancelledError, HiveError, TimedOutError
from transport.collectives.aborts import Key, RemoteAbort, abort_message, error_of
from transport.collectives.agreements import Agreements, Request
from transport.collectives.algorithms.registry import SCHEDULES_KEPT, schedule_of
from transport.collectives.calls import Call, CallSignature, Heard
from transport.collectives.executor import Executor, disagreement
from transport.collectives.membership import Membership, agreeing_group, agreement_group
from transport.collectives.native_executor import NativeExecutor
from transport.collectives.planning.cost_model import Choice
from transport.collectives.planning.planner import Planner, Report
from transport.collectives.problem import Plan, Problem
from transport.collectives.python_executor import PythonExecutor
from transport.collectives.schedule import Op, Schedule
from transport.engine.base import Priority
from transport.mesh.endpoint import Endpoint
from transport.wire.header import U64_MAX
from transport.work import Work, unforeseen

EARLY_MAX = 1024
"""Operations of which something is remembered before this rank begins them, or after; older ones end by timeouts."""
RETURN_S_MAX = 2.0
"""How long the engine may take to give buffers of an operation that has failed back before the log says so."""
LATE_STEPS = 16
"""Operations that have ended well whose late messages are looked at. They hold what a reconnect doubled, no more."""

V = TypeVar("V")
_log = logging.getLogger("transport.collectives")


class Announcer(Protocol):
    """Who is told of what a collective will send, and of its end: the session with the broker."""

    def collective_begins(self, now_s: float, key: Key, bytes_by_destination: Mapping[str, int]) -> None: ...

    def collective_ends(self, now_s: float, key: Key) -> None: ...


class InFlight:
    """See the module.

    Args:
        groups: by name; others may add to it.
        report: what this rank measured of its link, given the ranks that are at other sites.
        order: numbers all that is sent by this rank, collectives or not.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        announcer: Announcer,
        groups: Mapping[str, Membership],
        order: Iterator[int],
        chunk_bytes: int,
        report: Report,
    ) -> None:
        self._endpoint = endpoint
        self._announcer = announcer
        self._groups = groups
        self._order = order
        self._chunk_bytes = chunk_bytes
        self._running: dict[Key, Executor] = {}
        self._return_s: dict[Key, float] = {}
        self._given_up: OrderedDict[Key, RemoteAbort] = OrderedDict()
        self._early: OrderedDict[Key, dict[int, Heard]] = OrderedDict()
        self._done: OrderedDict[Key, CallSignature] = OrderedDict()
        self._found_late: dict[str, HiveError] = {}
        self._over: dict[str, int] = {}
        self._failed: set[str] = set()
        self.idle_since_s = time.monotonic()
        self._agreements = Agreements(
            groups=groups,
            report=report,
            start=self._begin_agreement,
            release=self.start,
            is_early=lambda key: key in self._early or key in self._given_up,
            refuse=lambda group, number: self.give_up(group, number, "the group was closed"),
        )

    def announce(self, call: Call, *, number: int, priority: Priority) -> Exception | None:
        """Announce what a call that got its number from its group will send, as far as it is known. In the caller's
        thread: others make room while the loop's wakes up, which on busy processors takes milliseconds.

        What is known to fail is not announced: who announces and does not send loses the broker's trust. Nor is bulk:
        nobody has to make room for what yields to everybody.

        Returns:
            What `start` is to get: why the operation fails, where it could not be announced.
        """
        key = (call.context.group, number)
        group = self._groups[call.context.group]
        try:
            problem = self._problem(call, number)
            schedule = schedule_of(problem, self._planner(key[0]).latest(problem).taken.plan)
            if priority is not Priority.BULK and not self._known_to_fail(key, group.ranks):
                sent = self._bytes_by_destination(schedule, group.ranks)
                self._announcer.collective_begins(time.monotonic(), key, sent)
        except Exception as cause:  # noqa: BLE001 - the operation fails by it, where all others do
            return cause
        return None

    def _problem(self, call: Call, number: int) -> Problem:
        problem = _cut(call.problem, self._chunk_bytes)
        return _in_turn(problem, number % problem.size) if problem.takes_turns else problem

    def end_announcement(self, group: str, number: int) -> None:
        """Of an operation that was planned, or was about to be, and may never begin. From any thread."""
        self._announcer.collective_ends(time.monotonic(), (group, number))

    def start(self, request: Request, failed: Exception | None = None) -> None:
        """Begin what was called, or hold it back until its group has agreed on what its plan follows from."""
        key = (request.call.context.group, request.number)
        if request.work.done():  # given up while it was held back
            return
        try:
            if failed is not None:
                raise failed
            problem = self._problem(request.call, request.number)
            choice = self._agreements.choose(request, problem, self._planner(key[0]))
            if choice is not None:
                plan = choice.taken.plan
                signature = _planned_signature(request.call.signature, plan, choice.network_number, choice.forced)
                self._begin(request, schedule_of(problem, plan), signature, choice)
        except Exception as cause:  # noqa: BLE001 - no memory for what is received, or a mistake of ours
            self._fail_to_begin(request, unforeseen(request.work.what, cause))

    def _begin_agreement(self, request: Request) -> None:
        try:
            schedule = schedule_of(self._problem(request.call, request.number), Plan())
            self._begin(request, schedule, request.call.signature, None)
        except Exception as cause:  # noqa: BLE001 - as of `start`; what waits for it goes on as before it
            self._fail_to_begin(request, unforeseen(request.work.what, cause))

    def _fail_to_begin(self, request: Request, error: HiveError) -> None:
        """An operation that got its number cannot begin here."""
        key = (request.call.context.group, request.number)
        group = self._groups[key[0]]
        group.begun = max(group.begun, request.number + 1)
        self._do_not_begin(key, request.work, error)
        if not self._endpoint.closing:
            self._tell_others(key, group.ranks, error)

    def _begin(self, request: Request, schedule: Schedule, signature: CallSignature, choice: Choice | None) -> None:
        call, work = request.call, request.work
        key = (call.context.group, request.number)
        group = self._groups[key[0]]
        group.begun = max(group.begun, request.number + 1)  # a signal's handler may overtake what it interrupted
        early = self._early.pop(key, {})
        given_up = self._given_up.pop(key, None)
        if self._endpoint.closing:
            self._do_not_begin(key, work, CancelledError(f"{work.what}: the transport was closed"))
            return
        if given_up is not None:
            error = self._error_of(given_up, group)
            self._do_not_begin(key, work, error)
            if given_up.answers:
                self._tell_others(key, group.ranks, error)
            return
        late = self._found_late.pop(key[0], None)
        if late is not None:
            self._do_not_begin(key, work, late)
            self._tell_others(key, group.ranks, late, disagrees=True)
            return
        executor = NativeExecutor if self._takes(call, schedule) else PythonExecutor
        task = executor(
            call,
            schedule,
            signature=signature,
            choice=choice,
            links=self._endpoint,
            ranks=group.ranks,
            number=request.number,
            order=next(self._order),
            priority=request.priority,
            work=work,
            timeout_s=request.timeout_s,
            deadline_s=request.deadline_s,
            on_end=self._ended,
        )
        self._running[key] = task
        for rank, heard in early.items():
            task.check(rank, heard)
        task.start()
        self.more_is_there(key)

    def more_is_there(self, key: Key) -> None:
        """There is more of an operation's input than before, or there never will be."""
        task = self._running.get(key)
        if task is not None and task.call.partial is not None:
            task.read_on(task.call.partial)

    def _planner(self, group: str) -> Planner:
        planner = self._groups[group].planner
        if planner is None:
            raise RuntimeError(f"{group} is a group of agreements")
        return planner

    def _takes(self, call: Call, schedule: Schedule) -> bool:
        """Whether the engine carries out this schedule of a call."""
        reduce_op = call.reduce_op.value if Op.REDUCE in schedule.ops else None
        return self._endpoint.collectives.takes(call.dtype, reduce_op)

    def _do_not_begin(self, key: Key, work: Work, error: HiveError) -> None:
        self._announcer.collective_ends(time.monotonic(), key)
        work.finish(error=error)
        self._one_over(key[0], failed=True)

    def give_up(self, group: str, number: int, reason: str, *, work: Work | None = None) -> None:
        """Do not begin an operation that got its number, or end it if it has begun; it fails on the other members.

        Args:
            work: its own, if it has one, which ends as well.
        """
        key = (group, number)
        if not self._not_begun(key):
            task = self._running.get(key)
            if task is not None:
                task.fail(CancelledError(f"{task.work.what}: {reason}"))
            return
        self._groups[group].begun = number + 1
        self._early.pop(key, None)
        self._given_up.pop(key, None)
        if work is not None:
            work.finish(error=CancelledError(f"{work.what}: {reason}"))
        if not self._endpoint.closing:
            self._tell_others(key, self._groups[group].ranks, CancelledError(reason))
        self._one_over(group, failed=True)

    def tick(self, now_s: float) -> float:
        """Time out what is late; returns when to be called next.

        An operation that has failed ends when the engine has given its buffers back, and not before: tensors that the
        engine may still write are not the caller's.
        """
        for request in self._agreements.take(lambda one: now_s >= one.deadline_s):
            waiting = f"{request.work.what}, waiting for the ranks to agree on their links"
            self._fail_to_begin(request, TimedOutError(waiting, timeout_s=request.timeout_s))
        wake_s = self._agreements.next_deadline_s()
        for key, task in tuple(self._running.items()):
            if task.error is None and now_s >= task.deadline_s:
                task.time_out()
            if task.error is None:
                if now_s >= task.asks_s:
                    task.asks_s = math.inf
                    self._ask(key, task)
                wake_s = min(wake_s, task.asks_s, task.deadline_s)
            elif key in self._running:
                late_s = self._return_s.setdefault(key, now_s + RETURN_S_MAX)
                if now_s < late_s:
                    wake_s = min(wake_s, late_s)
                elif not math.isinf(late_s):
                    self._return_s[key] = math.inf
                    _log.warning("%s has failed, but the engine still holds its tensors", task.work.what)
        while self._over and not self._endpoint.closing:  # not at each end: it takes as long as a small collective
            self._endpoint.discard(*self._over.popitem())
        return wake_s

    def _ask(self, key: Key, task: Executor) -> None:
        """Tell those that an operation waits for what it is. Whoever called something else says so to all."""
        for rank, said in task.awaited().items():
            if self._endpoint.peers.error(rank) is None:
                message = {
                    "op": "called",
                    "group": key[0],
                    "step": key[1],
                    "call": said.called,
                    "expects": said.expects,
                }
                self._endpoint.control(rank, message)

    def heard_call(self, rank: int, key: Key, heard: Heard) -> None:
        """What another rank called, by a message that nothing here has asked for, or because it waits for this rank."""
        task = self._running.get(key)
        if task is not None:
            task.check(rank, heard)
        elif self._not_begun(key):
            _remember(self._early, key, {**self._early.get(key, {}), rank: heard})
            if (group := agreeing_group(key[0])) in self._groups:
                self._agreements.invited(group)
        elif key in self._done and rank in self._groups[key[0]].ranks:
            ranks = self._groups[key[0]].ranks
            what = f"operation {key[1]} of group {key[0]}"
            error = disagreement(self._done[key], heard, rank=rank, what=what, ranks=ranks, own=self._endpoint.rank)
            if error is not None:
                self._tell_others(key, ranks, error, disagrees=True)
                self._learn_late(key, error)

    def given_up_by(self, key: Key, given_up: RemoteAbort) -> None:
        """Another member has given an operation up. One that is over here and should not have been is told next."""
        task = self._running.get(key)
        group = self._groups.get(key[0])
        if group is not None and given_up.rank not in group.ranks:
            return
        if task is not None and group is not None:
            # Whoever lost a rank does not tell that one, so we do.
            task.fail(self._error_of(given_up, group, task.waits_for()), remote=not given_up.answers)
        elif self._not_begun(key):
            _remember(self._given_up, key, given_up)
        elif group is not None and given_up.disagrees and key in self._done:
            self._learn_late(key, self._error_of(given_up, group))

    def cancel(self, group: str | None, reason: str) -> None:
        """End everything under way in a group, or in all."""
        for request in self._agreements.take(lambda one: group in (None, one.call.context.group)):
            self._fail_to_begin(request, CancelledError(f"{request.work.what}: {reason}"))
        for (name, _), task in tuple(self._running.items()):
            if group is None or name in (group, agreement_group(group)):
                task.fail(CancelledError(f"{task.work.what}: {reason}"))

    def is_running(self, group: str) -> bool:
        """Whether something is under way in a group."""
        names = (group, agreement_group(group))
        return self._agreements.is_holding(group) or any(name in names for name, _ in self._running)

    def waits(self) -> Iterator[tuple[Key, str, list[int], float]]:
        """What is under way: also in words, the ranks of the endpoint that it waits for, and since how many seconds."""
        for key, task in self._running.items():
            yield key, task.work.what, sorted(task.awaited()), task.took_s()

    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._running)

    def close(self, group: str) -> None:
        """Take no more messages of a group."""
        for one in (group, agreement_group(group)):
            self._over[one] = U64_MAX

    def forget(self, group: str) -> None:
        """Drop all that is known of a group in which nothing is under way any more: another may have its name."""
        self._over.pop(group, None)
        self._endpoint.discard(group, 0)
        remembered: tuple[OrderedDict[Key, object], ...] = (self._given_up, self._early, self._done)  # type: ignore[assignment]
        for what in remembered:
            for key in [key for key in what if key[0] == group]:
                del what[key]
        self._found_late.pop(group, None)
        self._agreements.forget(group)

    def abandon(self) -> None:
        """End everything now: the engine is gone."""
        for task in tuple(self._running.values()):
            task.abandon()

    def _ended(self, task: Executor) -> None:
        key = (task.call.context.group, task.number)
        del self._running[key]
        self.idle_since_s = time.monotonic()
        self._return_s.pop(key, None)
        self._announcer.collective_ends(time.monotonic(), key)
        if self._endpoint.closing:
            return
        if task.error is None:
            _remember(self._done, key, task.signature)
            if task.choice is not None:
                self._planner(key[0]).ended(self._problem(task.call, task.number), task.choice, took_s=task.took_s())
        elif not task.remote:
            self._tell_others(key, task.ranks, task.error, disagrees=task.disagrees)
        self._one_over(key[0], failed=task.error is not None)

    def _one_over(self, group: str, *, failed: bool) -> None:
        """An operation has ended here, or will never begin. Once all that have begun are over, what still waits for one
        is a late duplicate, or left of one that failed, which may fill the store for unposted messages, or (for the
        last few alone worth looking at) is of another call than ours was."""
        if failed:
            self._failed.add(group)
        if self.is_running(group):
            return
        kept = 0 if group in self._failed else LATE_STEPS
        self._failed.discard(group)
        self._over[group] = max(self._groups[group].begun - kept, self._over.get(group, 0))

    def _learn_late(self, key: Key, error: HiveError) -> None:
        """An operation that has ended well here was not the others'. What comes after it in the group raises that."""
        del self._done[key]  # once is enough, although several members may say it
        later = [task for (name, _), task in self._running.items() if name == key[0]]
        for task in later:
            task.disagrees = True
            task.fail(error)
        if not later:
            self._found_late[key[0]] = error

    def _not_begun(self, key: Key) -> bool:
        """Whether this rank may still begin an operation; its group may not have been made here yet.

        One that is held back may be overtaken by the end of a later one.
        """
        group = self._groups.get(key[0])
        return group is None or key[1] >= group.begun or self._agreements.holds(key)

    def _known_to_fail(self, key: Key, ranks: tuple[int, ...]) -> bool:
        """As far as a caller's thread can see; `start` and the task decide."""
        return (
            self._endpoint.closing
            or key in self._given_up
            or key[0] in self._found_late
            or any(rank != self._endpoint.rank and self._endpoint.peers.error(rank) is not None for rank in ranks)
        )

    def _error_of(self, given_up: RemoteAbort, group: Membership, waits_for: str = "") -> HiveError:
        return error_of(given_up, ranks=group.ranks, peers=self._endpoint.peers.peers, waits_for=waits_for)

    def _tell_others(self, key: Key, ranks: tuple[int, ...], error: HiveError, *, disagrees: bool = False) -> None:
        message = abort_message(key, ranks, error, disagrees=disagrees)
        for rank in ranks:
            if rank != self._endpoint.rank and self._endpoint.peers.error(rank) is None:
                self._endpoint.control(rank, message)

    def _bytes_by_destination(self, schedule: Schedule, ranks: tuple[int, ...]) -> dict[str, int]:
        sent: dict[str, int] = {}
        for rank, nbytes in schedule.sent_bytes:
            address = self._endpoint.peers.address(ranks[rank])
            sent[address] = sent.get(address, 0) + nbytes
        return sent


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _cut(problem: Problem, chunk_bytes: int) -> Problem:
    return replace(problem, chunk_bytes=chunk_bytes)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _in_turn(problem: Problem, turn: int) -> Problem:
    return replace(problem, turn=turn)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _planned_signature(signature: CallSignature, plan: Plan, network_number: int, forced: bool) -> CallSignature:
    """Ranks that plan differently do not call the same thing. Nor do they where some were asked to plan as others do by
    themselves: they would differ later. What all do by default goes without saying."""
    if plan == Plan() and not forced:
        return signature
    table = f" {network_number}" if plan.weights or plan.sites else ""
    asked = " (forced)" if forced else ""
    return replace(signature, common=f"{signature.common} by {plan.algorithm}{table}{asked}")


def _remember(what: OrderedDict[Key, V], key: Key, value: V) -> None:
    """Keep something of an operation, and forget the oldest beyond the bound."""
    what[key] = value
    while len(what) > EARLY_MAX:
        what.popitem(last=False)
