"""The daemon's side of its watchdog (broker.process.watchdog): starts it, sends heartbeats, reads answers, replaces it.

A beat goes out before anything is written to the kernel. After a gap in which the watchdog may have opened the
ceilings, its answer is waited for first: then it opens nothing while we write, and we know whether the tree is ours.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from broker.events.log import Log
from broker.model.status_values import WatchdogInfo
from broker.model.values import Alarm
from broker.process.side_process import READY_S_MAX, SideProcess, python
from broker.process.watchdog import BEATS_WITHIN_S, MESSAGE_BYTES_MAX, MODULE, SILENCE_S
from hive_qos.errors import ShapingError

BEAT_S = 0.6 * BEATS_WITHIN_S
"""Beats are at least this far apart, every second tick by default: one costs the two processes 0.1 ms each."""
ASK_AFTER_S = SILENCE_S / 2
"""After a gap of this length the watchdog is asked: it may have opened, or be about to."""
ANSWER_S = 0.25
"""How long a tick waits for the answer. A watchdog that takes longer is not opening anything either."""
DEAF_S = 3.0
"""A watchdog that answers nothing for so long while we tick hangs. It is replaced."""


class State(enum.Enum):
    """Of the watchdog's process, as the daemon knows it.

    GONE to STARTING by a start, STARTING to WATCHING by its first answer, any to GONE by its death or its silence.
    """

    GONE = enum.auto()
    STARTING = enum.auto()
    WATCHING = enum.auto()


class WatchdogClient:
    """Keeps one watchdog running beside this daemon. For the loop's thread.

    Args:
        command: what is run, before the descriptor and the state directory.
    """

    def __init__(
        self,
        *,
        log: Log,
        command: tuple[str, ...] = python(MODULE),
    ) -> None:
        self._log, self._process = log, SideProcess(command)
        self._sock: socket.socket | None = None
        self._state = State.GONE
        self._reopened = self._was_busy = False
        self._sequence = self._acknowledged = self._seen = 0
        self._beat_s: float | None = None
        self._unanswered_s: float | None = None
        self._starts = self._openings = 0

    def start(self, directory: Path, *, changes: Callable[[], int], lock: int) -> None:
        """Start the watchdog, and wait until it watches.

        Args:
            directory: of the journal, which names the interfaces whose ceilings it opens.
            changes: counts what was written there.
            lock: the descriptor of our claim on the network namespace, which it holds with us.

        Raises:
            ShapingError: it does not start; nobody would open ceilings if we died.
        """
        self._directory, self._changes, self._lock = directory.absolute(), changes, lock
        self._known_changes = changes()
        try:
            self._launch()
        except OSError as problem:
            raise ShapingError(f"the watchdog cannot be started: {problem}; without it nothing is shaped") from problem
        until_s = time.monotonic() + READY_S_MAX
        while self._state is State.STARTING and time.monotonic() < until_s and self._process.runs:
            self._hear(wait_s=0.05)
        if self._state is not State.WATCHING:
            self.end(restored=False)
            raise ShapingError("the watchdog does not start (the log may say why); without it nothing is shaped")

    def beat(self, *, busy: bool = False) -> bool:
        """Send a heartbeat to the watchdog; True when it has opened the ceilings since last asked.

        Cheap: call it often. Between beats it does nothing.

        Args:
            busy: what follows may take as long as a start (a reload does): the watchdog waits longer for the next beat.
        """
        now_s = time.monotonic()
        patient = busy or self._was_busy
        if self._beat_s is not None and now_s - self._beat_s < BEAT_S and not patient:
            return False
        self._was_busy = busy
        gap_s = None if self._beat_s is None else now_s - self._beat_s
        self._beat_s = now_s
        if self._state is State.GONE and self._process.may_start(now_s=now_s):
            self._launch_again()
        self._hear()
        self._send(busy)
        if gap_s is None or gap_s > ASK_AFTER_S:
            until_s = time.monotonic() + ANSWER_S
            while self._sock is not None and self._acknowledged < self._sequence and time.monotonic() < until_s:
                self._hear(wait_s=max(0.001, until_s - time.monotonic()))
        if self._unanswered_s is not None and now_s - self._unanswered_s > DEAF_S:
            self._lost(f"has not answered for {DEAF_S:g} s")
        reopened, self._reopened = self._reopened, False
        return reopened

    def end(self, *, restored: bool) -> None:
        """End the watchdog. Unless all was put back it opens what is left of ours first."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        with sock:
            if restored:
                with contextlib.suppress(OSError):  # it is gone already
                    sock.send(b"q")
            else:
                sock.close()
            self._process.end()

    def info(self) -> WatchdogInfo:
        """Its state, for the status."""
        alive = self._state is State.WATCHING and self._process.runs
        return WatchdogInfo(pid=self._process.pid, alive=alive, openings=self._openings, started=self._starts)

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong with it now."""
        if self._state is State.WATCHING:
            return ()
        text = "nobody opens the ceilings if this daemon dies; it is started again every second"
        return (Alarm(code="watchdog-missing", subject="watchdog", text=text),)

    def _launch(self) -> None:
        self._seen = 0
        self._sock = self._process.start_connected(self._directory, descriptors=(self._lock,), now_s=time.monotonic())
        self._sock.setblocking(False)
        self._state = State.STARTING
        self._starts += 1

    def _launch_again(self) -> None:
        try:
            self._launch()
        except OSError as problem:
            self._log.error("watchdog-start-failed", error=str(problem))

    def _send(self, busy: bool) -> None:
        if self._sock is None:
            return
        changes = self._changes()
        kind = "s" if busy else "j" if changes != self._known_changes else "b"
        self._sequence += 1
        try:
            self._sock.send(f"{kind} {self._sequence}".encode())
            if kind == "j":
                self._known_changes = changes
        except BlockingIOError:  # it does not read: DEAF_S decides
            pass
        except OSError as problem:
            self._lost(f"has died ({problem.strerror})")
            return
        if self._unanswered_s is None:
            self._unanswered_s = time.monotonic()

    def _hear(self, *, wait_s: float = 0.0) -> None:
        """Read the watchdog's answers; wait at most `wait_s` for the first."""
        sock = self._sock
        if sock is None:
            return
        if wait_s:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            poll.poll(wait_s * 1000)
        try:
            while answer := sock.recv(MESSAGE_BYTES_MAX):
                self._understand(answer)
            self._lost("has died")
        except BlockingIOError:
            pass
        except OSError as problem:
            self._lost(f"has died ({problem.strerror})")

    def _understand(self, answer: bytes) -> None:
        sequence, opened, silence_s = answer.split()
        if self._state is State.STARTING and self._starts > 1:
            self._log.info("watchdog-restored")
        self._state = State.WATCHING
        self._acknowledged, self._unanswered_s = int(sequence), None
        if int(opened) != self._seen:
            self._openings += int(opened) - self._seen
            self._seen, self._reopened = int(opened), True
            self._log.warning("ceilings-opened", silence_s=float(silence_s))

    def _lost(self, what: str) -> None:
        """It is gone or useless. What it did last is not known, so the tree is written anew."""
        self._log.error("watchdog-lost", error=what)
        self._process.kill()
        self.end(restored=True)
        self._state, self._reopened, self._unanswered_s = State.GONE, True, None
