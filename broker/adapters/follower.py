"""Follows one storage program: reads its backlog, declares it, and keeps its limit. One round each two seconds.

Without a broker nothing is limited: what was found is put back, for nobody would raise the limit again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from broker.adapters.deadline import Deadline
from broker.adapters.limiter import Limiter, unkept
from broker.adapters.program import Backlog, ProgramError, StorageAdapter
from broker.client.mailbox import Allowance
from broker.client.session import Session
from broker.events.log import Log
from broker.policy.types import StorageProgram

ROUND_S = 2.0
READ_S = 10.0
"""Between two readings of the backlog; a program that takes long to answer is asked less often."""
READ_PART = 0.05
"""Of the time a program may spend on our questions."""
AWAY_S = 10.0
"""A broker that restarts is back within a second or two."""


class Declares(Protocol):
    """As much of `Session` as a follower uses."""

    need: Callable[..., None]
    program: Callable[..., None]

    @property
    def allowance(self) -> Allowance | None:
        """What the class may use now; None without a broker."""


class Follower:
    """One program. For one thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        program: StorageProgram,
        adapter: StorageAdapter,
        limiter: Limiter,
        session: Session | Declares,
        *,
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._program, self._adapter, self._limiter, self._session = program, adapter, limiter, session
        self._log, self._clock = log, clock
        self._deadline = Deadline(program)
        self._backlog: Backlog | None = None
        self._problem: ProgramError | None = None
        self._limits = program.limit and adapter.limits
        self._read_s = float("-inf")
        self._away_since_s: float | None = None

    def round(self) -> None:
        """Limit, read where that is due, and declare."""
        before, now_s = self._problem, self._clock()
        unlimited: ProgramError | None = None
        try:  # first, and also where it does not say what it has to do: a limit has to follow, or to go
            if self._limits:
                self._limit(now_s)
        except ProgramError as problem:
            unlimited, self._backlog = problem, None
            self._read_s = min(self._read_s, now_s + READ_S)
        except OSError as problem:
            unlimited = unkept(problem)
        try:
            if now_s >= self._read_s:
                self._read(now_s)
            if unlimited is not None or self._backlog is not None:
                self._problem = unlimited
        except ProgramError as problem:
            self._problem, self._backlog = problem, None
        self._tell(before)
        self._declare()

    def end(self) -> None:
        """Put back what was found, and declare that nothing is left."""
        self._session.need(backlog_bytes=0)
        try:
            self._restore("the adapter ends")
        except (ProgramError, OSError) as problem:
            self._log.error("storage-limit-left", program=self._program.name, error=str(problem))

    def _read(self, now_s: float) -> None:
        try:
            self._backlog = self._adapter.read()
        finally:
            took_s = self._clock() - now_s
            self._read_s = now_s + max(READ_S, took_s / READ_PART)

    def _limit(self, now_s: float) -> None:
        allowance = self._session.allowance
        if allowance is not None:
            self._away_since_s = None
            self._limiter.follow(
                ceiling_bits_per_s=allowance.ceiling_bits_per_s,
                guarantee_bits_per_s=allowance.guarantee_bits_per_s,
                now_s=now_s,
            )
            return
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        if now_s - self._away_since_s >= AWAY_S:
            self._restore("no broker limits storage now")

    def _restore(self, why: str) -> None:
        done = self._limiter.restore()
        if done is not None:
            self._log.info("storage-limit-restored", program=self._program.name, note=f"{why}; {done}")

    def _tell(self, before: ProgramError | None) -> None:
        """Log that it began or ceased to fail."""
        problem, name = self._problem, self._program.name
        if problem is not None and (before is None or before.text != problem.text):
            self._log.warning("storage-program-failed", program=name, error=problem.text)
        elif problem is None and before is not None:
            self._log.info("storage-program-answers", program=name)

    def _declare(self) -> None:
        backlog, problem = self._backlog, self._problem
        if backlog is not None:
            self._session.need(
                backlog_bytes=backlog.upload_bytes,
                deadline_s=self._deadline.remaining_s(backlog.upload_bytes, now=datetime.datetime.now(datetime.UTC)),
                replicas_at_risk=backlog.objects_at_risk,
                bytes_by_destination=backlog.peers,
            )
        shown = backlog or Backlog()
        self._session.program(
            name=self._program.name,
            kind=self._program.kind,
            state="working" if problem is None else problem.state,
            text=self._limiter.note if problem is None else problem.text,
            limit_bits_per_s=self._limiter.rate_bits_per_s,
            upload_bytes=shown.upload_bytes,
            waiting_bytes=shown.waiting_bytes,
            download_bytes=shown.download_bytes,
        )
