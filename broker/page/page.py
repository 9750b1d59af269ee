"""The page in a daemon's life: opened where policy wants it, moved at a reload, tried again where it cannot listen."""

from __future__ import annotations

from collections.abc import Callable

from broker.api.documents.snapshot import Snapshot
from broker.api.latest_snapshot import LatestSnapshot
from broker.events.log import Log
from broker.model.values import Alarm
from broker.page.history import History
from broker.page.server import PageServer
from broker.policy.types import PagePolicy

AGAIN_S = 10.0
"""An address may come later than the daemon, and a port be free again."""


class Page:
    """For the loop's thread."""

    def __init__(self, *, log: Log, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._wanted: PagePolicy | None = None
        self._server: PageServer | None = None
        self._history = History()
        self._again_s = 0.0
        self._alarm: Alarm | None = None

    def keep(self, policy: PagePolicy | None, *, latest: LatestSnapshot) -> None:
        """Serve as policy says, from now on.

        Args:
            policy: None serves nothing.
            latest: what the page shows.
        """
        if policy == self._wanted and (self._alarm is None or self._clock() < self._again_s):
            return
        if policy != self._wanted:
            self.close()
            self._wanted = policy
        if policy is not None and self._server is None:
            self._open(policy, latest)

    def record(self, snapshot: Snapshot) -> None:
        """Take a snapshot into the history, where there is a page."""
        if self._server is not None:
            self._history.record(snapshot, now_s=self._clock())

    def alarms(self) -> tuple[Alarm, ...]:
        """Why there is no page although policy wants one."""
        return () if self._alarm is None else (self._alarm,)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            self._history = History()
        self._server = self._alarm = self._wanted = None

    def _open(self, policy: PagePolicy, latest: LatestSnapshot) -> None:
        try:
            self._server = PageServer(policy, latest=latest, history=self._history)
        except OSError as problem:
            text = f"nothing listens at {policy.listen}: {problem.strerror or problem}"
            if self._alarm is None:
                self._log.error("page-unavailable", error=text)
            self._alarm = Alarm("page-unavailable", "page", text)
            self._again_s = self._clock() + AGAIN_S
            return
        self._alarm = None
        self._log.info("page-ready", listen=policy.listen)
