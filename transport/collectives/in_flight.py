"""All collectives of one rank that are under way: begun, timed out, given up, told to the others. In the loop's thread.

When a collective fails on one rank, that rank tells the other members, so that they do not wait for their own timeouts:
they raise the same lost rank, or `CancelledError` naming who gave up and why. Where that rank still answers, it is the
latter, and names both: one member's word is no proof that a rank is gone. What others say of an operation that this
rank has not begun yet is remembered until it does.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError
from transport.collectives.algorithms.registry import schedule_of
from transport.collectives.calls import Call, CallSignature
from transport.collectives.executor import Executor, disagreement
from transport.collectives.membership import Membership
from transport.collectives.problem import Plan
from transport.collectives.schedule import Schedule
from transport.engine.base import Priority
from transport.mesh.endpoint import Endpoint
from transport.wire.header import Header
from transport.work import Work, unforeseen

EARLY_MAX = 1024
"""Operations of which something is remembered before this rank begins them, or after; older ones end by timeouts."""
RETURN_S_MAX = 2.0
"""How long the engine may take to give buffers of an operation that has failed back before the log says so."""
REASON_CHARS_MAX = 512
LATE_STEPS = 16
"""Operations that have ended well whose late messages are looked at. They hold what a reconnect doubled, no more."""

V = TypeVar("V")
_log = logging.getLogger("transport.collectives")

Key = tuple[str, int]
"""A group and the number of an operation in it."""


@dataclass(frozen=True)
class RemoteAbort:
    """What another member says of an operation that it has given up.

    Args:
        rank: who says it, as a rank of the endpoint.
        lost: the rank of the endpoint whose loss it was, if it was one.
        answers: that rank still answers us: only the two of them know which of them is to blame.
        disagrees: the members do not call the same thing; `reason` says what each called.
    """

    rank: int
    reason: str
    lost: int | None = None
    answers: bool = False
    disagrees: bool = False


class Announcer(Protocol):
    """Who is told of what a collective will send, and of its end: the session with the broker."""

    def collective_begins(self, now_s: float, key: Key, bytes_by_destination: Mapping[str, int]) -> None: ...

    def collective_ends(self, now_s: float, key: Key) -> None: ...


class InFlight:
    """See the module.

    Args:
        groups: by name; others may add to it.
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
    ) -> None:
        self._endpoint = endpoint
        self._announcer = announcer
        self._groups = groups
        self._order = order
        self._chunk_bytes = chunk_bytes
        self._running: dict[Key, Executor] = {}
        self._return_s: dict[Key, float] = {}
        self._given_up: OrderedDict[Key, RemoteAbort] = OrderedDict()
        self._early: OrderedDict[Key, dict[int, Header]] = OrderedDict()
        self._done: OrderedDict[Key, CallSignature] = OrderedDict()
        self._found_late: dict[str, HiveError] = {}

    def plan(self, call: Call, *, number: int) -> Schedule | Exception:
        """Make the schedule of a call that got its number from its group, and announce it. In the caller's thread:
        others make room while the loop's wakes up, which on busy processors takes milliseconds.

        What is known to fail is not announced: who announces and does not send loses the broker's trust.

        Returns:
            What `start` is to get: the schedule, or why there is none.
        """
        key = (call.context.group, number)
        try:
            problem = replace(call.problem, chunk_bytes=self._chunk_bytes)
            if problem.takes_turns:
                problem = replace(problem, turn=number % problem.size)
            schedule = schedule_of(problem, Plan())
            ranks = self._groups[call.context.group].ranks
            if not self._known_to_fail(key, ranks):
                self._announcer.collective_begins(time.monotonic(), key, self._bytes_by_destination(schedule, ranks))
        except Exception as cause:  # noqa: BLE001 - the operation fails by it, where all others do
            return cause
        return schedule

    def end_announcement(self, group: str, number: int) -> None:
        """Of an operation that was planned, or was about to be, and may never begin. From any thread."""
        self._announcer.collective_ends(time.monotonic(), (group, number))

    def start(
        self,
        call: Call,
        planned: Schedule | Exception,
        *,
        number: int,
        work: Work,
        began_s: float,
        timeout_s: float,
        priority: Priority,
    ) -> None:
        """Begin a call that was planned."""
        key = (call.context.group, number)
        group = self._groups[call.context.group]
        group.begun = max(group.begun, number + 1)  # a signal's handler may begin one before the one it interrupted
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
        late = self._found_late.pop(call.context.group, None)
        if late is not None:
            self._do_not_begin(key, work, late)
            self._tell_others(key, group.ranks, late, disagrees=True)
            return
        try:
            if isinstance(planned, Exception):
                raise planned
            task = Executor(
                call,
                planned,
                links=self._endpoint,
                ranks=group.ranks,
                number=number,
                order=next(self._order),
                priority=priority,
                work=work,
                timeout_s=timeout_s,
                deadline_s=began_s + timeout_s,
                on_end=self._ended,
            )
        except Exception as cause:  # noqa: BLE001 - no memory for what is received, or a mistake of ours
            error = unforeseen(work.what, cause)
            self._do_not_begin(key, work, error)
            self._tell_others(key, group.ranks, error)
            return
        self._running[key] = task
        for rank, header in early.items():
            task.check(rank, header)
        task.start()

    def _do_not_begin(self, key: Key, work: Work, error: HiveError) -> None:
        self._announcer.collective_ends(time.monotonic(), key)
        work.finish(error=error)

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

    def tick(self, now_s: float) -> float:
        """Time out what is late; returns when to be called next.

        An operation that has failed ends when the engine has given its buffers back, and not before: tensors that the
        engine may still write are not the caller's.
        """
        wake_s = math.inf
        for key, task in tuple(self._running.items()):
            if task.error is None and now_s >= task.deadline_s:
                task.time_out()
            if task.error is None:
                wake_s = min(wake_s, task.deadline_s)
            elif key in self._running:
                late_s = self._return_s.setdefault(key, now_s + RETURN_S_MAX)
                if now_s < late_s:
                    wake_s = min(wake_s, late_s)
                elif not math.isinf(late_s):
                    self._return_s[key] = math.inf
                    _log.warning("%s has failed, but the engine still holds its tensors", task.work.what)
        return wake_s

    def unexpected(self, rank: int, header: Header) -> None:
        """A message waits that nothing here has asked for: early, or of a call that does not match ours."""
        key = (header.group, header.step)
        task = self._running.get(key)
        if task is not None:
            task.check(rank, header)
        elif self._not_begun(key):
            _remember(self._early, key, {**self._early.get(key, {}), rank: header})
        elif key in self._done and rank in self._groups[key[0]].ranks:
            ranks = self._groups[key[0]].ranks
            what = f"operation {key[1]} of group {key[0]}"
            error = disagreement(self._done[key], header, what=what, ranks=ranks, own=self._endpoint.rank)
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
            task.fail(self._error_of(given_up, group), remote=not given_up.answers)
        elif self._not_begun(key):
            _remember(self._given_up, key, given_up)
        elif group is not None and given_up.disagrees and key in self._done:
            self._learn_late(key, self._error_of(given_up, group))

    def cancel(self, group: str | None, reason: str) -> None:
        """End everything under way in a group, or in all."""
        for (name, _), task in tuple(self._running.items()):
            if group is None or name == group:
                task.fail(CancelledError(f"{task.work.what}: {reason}"))

    def is_running(self, group: str) -> bool:
        """Whether something is under way in a group."""
        return any(name == group for name, _ in self._running)

    def forget(self, group: str) -> None:
        """Drop all that is known of a group in which nothing is under way any more."""
        remembered: tuple[OrderedDict[Key, object], ...] = (self._given_up, self._early, self._done)  # type: ignore[assignment]
        for what in remembered:
            for key in [key for key in what if key[0] == group]:
                del what[key]
        self._found_late.pop(group, None)

    def abandon(self) -> None:
        """End everything now: the engine is gone."""
        for task in tuple(self._running.values()):
            task.abandon()

    def _ended(self, task: Executor) -> None:
        key = (task.call.context.group, task.number)
        del self._running[key]
        self._return_s.pop(key, None)
        self._announcer.collective_ends(time.monotonic(), key)
        if self._endpoint.closing:
            return
        if task.error is None:
            _remember(self._done, key, task.call.signature)
        elif not task.remote:
            self._tell_others(key, task.ranks, task.error, disagrees=task.disagrees)
        if not self.is_running(key[0]):
            # Every earlier operation of the group is over here: what still waits for one is a late duplicate, or left
            # of one that failed, or (for the last few alone worth looking at) is of another call than ours was.
            kept = 0 if task.error is not None else LATE_STEPS
            self._endpoint.discard(key[0], max(self._groups[key[0]].begun - kept, 0))

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
        """Whether this rank may still begin an operation; its group may not have been made here yet."""
        group = self._groups.get(key[0])
        return group is None or key[1] >= group.begun

    def _known_to_fail(self, key: Key, ranks: tuple[int, ...]) -> bool:
        """As far as a caller's thread can see; `start` and the task decide."""
        return (
            self._endpoint.closing
            or key in self._given_up
            or key[0] in self._found_late
            or any(rank != self._endpoint.rank and self._endpoint.peers.error(rank) is not None for rank in ranks)
        )

    def _error_of(self, given_up: RemoteAbort, group: Membership) -> HiveError:
        """What this rank raises when another one has given up; ranks are those of the group."""
        index = group.ranks.index(given_up.rank) if given_up.rank in group.ranks else given_up.rank
        peer = None if given_up.lost not in group.ranks else self._endpoint.peers.peers.get(given_up.lost)
        if peer is not None and given_up.answers:
            accused = group.ranks.index(peer.rank)
            said = f"it says that it lost rank {accused}, which still answers this rank: {given_up.reason}"
            return CancelledError(f"rank {index} gave up: {said}")
        if peer is not None:
            return ConnectionLostError(peer.name, given_up.reason, rank=group.ranks.index(peer.rank))
        if given_up.disagrees:
            return PeerError(f"rank {index}", given_up.reason)
        return CancelledError(f"rank {index} gave up: {given_up.reason}")

    def _tell_others(self, key: Key, ranks: tuple[int, ...], error: HiveError, *, disagrees: bool = False) -> None:
        lost = None
        if isinstance(error, ConnectionLostError) and error.rank is not None:
            lost = ranks[error.rank]  # errors name ranks of the group, messages ranks of the endpoint
        if isinstance(error, ConnectionLostError) or (disagrees and isinstance(error, PeerError)):
            reason = error.reason
        else:
            reason = str(error)
        message = {
            "op": "abort",
            "group": key[0],
            "step": key[1],
            "reason": reason[:REASON_CHARS_MAX],
            "lost": lost,
            "disagrees": disagrees,
        }
        for rank in ranks:
            if rank != self._endpoint.rank and self._endpoint.peers.error(rank) is None:
                self._endpoint.control(rank, message)

    def _bytes_by_destination(self, schedule: Schedule, ranks: tuple[int, ...]) -> dict[str, int]:
        sent: dict[str, int] = {}
        for rank, nbytes in schedule.sent_bytes:
            address = self._endpoint.peers.address(ranks[rank], bulk=False)[0]
            sent[address] = sent.get(address, 0) + nbytes
        return sent


def _remember(what: OrderedDict[Key, V], key: Key, value: V) -> None:
    """Keep something of an operation, and forget the oldest beyond the bound."""
    what[key] = value
    while len(what) > EARLY_MAX:
        what.popitem(last=False)
