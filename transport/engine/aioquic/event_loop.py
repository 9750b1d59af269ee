"""The engine's thread: waiting, commands from other threads, events to the caller. What a turn does is `Core`'s."""

from __future__ import annotations

import abc
import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hive_qos.errors import CancelledError, ConnectionLostError, TransportError
from transport.engine.base import Event

TICK_S = 0.1
POLL_S_MIN = 0.001
"""The kernel waits whole milliseconds; pacing at 1 Gbit/s needs less."""
HELD_UP_S = 0.5
"""A turn that took longer was not the network's fault: peers are given that time again before they count as dead."""

_log = logging.getLogger("hive_qos.transport")


class Loop(abc.ABC):
    """A thread over descriptors, timers and commands. Only `command` and `over` are for other threads.

    Whatever goes wrong in it fails every operation and connection, with the traceback in the log; it never dies
    silently.
    """

    def __init__(self, *, on_events: Callable[[Sequence[Event]], None]) -> None:
        self.on_events = on_events
        self.over = False
        self._commands: deque[Callable[[], None]] = deque()
        self._events: list[Event] = []
        self._finishing = False
        self._now = time.monotonic()
        self._ticked_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def command(self, action: Callable[[], None]) -> bool:
        """Have the thread do something; from any thread. False where it has ended meanwhile: it will never be done."""
        self._commands.append(action)
        if self.over:
            # The thread takes all that came before `over` could be seen; of what came since, nobody knows but us.
            try:
                self._commands.remove(action)
            except ValueError:
                return True  # taken all the same
            return False
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: the engine has ended, and has taken this
            self._wake_write.send(b"\0")
        return True

    def finish(self) -> None:
        """End the thread after this turn."""
        self._finishing = True

    def close_descriptors(self) -> None:
        """Close what is open, without a word to anybody: at the end, and in a forked child."""
        for item in (self._selector, self._wake_read, self._wake_write):
            item.close()

    def run(self) -> None:
        """The thread."""
        try:
            while not self._finishing:
                self._turn()
            self._obey()
            self._say_goodbye()
            error: TransportError = CancelledError("the engine was closed here")
        except Exception as failure:  # noqa: BLE001 - whatever it is, every operation has to end and the log has to say why
            _log.exception("the transport engine failed; all its connections are lost")
            error = ConnectionLostError("everybody", f"the engine of this process failed: {failure!r}")
        self.over = True
        # What was asked for until now has its end, too. From here on `command` refuses.
        while self._commands:
            try:
                self._obey()
            except Exception:  # noqa: BLE001 - of an engine that failed: the next may still be done
                _log.exception("what was asked of the transport engine at its end failed")
        self._fail_everything(error)
        self._hand_over()
        self.close_descriptors()

    @abc.abstractmethod
    def _ready_on(self, source: Any, mask: int) -> None:
        """What `source` was registered for in the selector is ready."""

    @abc.abstractmethod
    def _work(self, now: float) -> None:
        """Run timers and send."""

    @abc.abstractmethod
    def _tick(self, now: float) -> None:
        """What is due ten times a second."""

    @abc.abstractmethod
    def _next_at(self) -> float:
        """When the next timer is due; infinite where none is set."""

    @abc.abstractmethod
    def _held_up(self, lost_s: float) -> None:
        """The thread could not run for so long."""

    @abc.abstractmethod
    def _say_goodbye(self) -> None:
        """The caller closes: end everything in good order."""

    @abc.abstractmethod
    def _fail_everything(self, error: TransportError) -> None:
        """Give every operation and connection that is left its last event."""

    def _turn(self) -> None:
        wait_s = self._wait_s()
        if 0 < wait_s < POLL_S_MIN:
            time.sleep(wait_s)
            wait_s = 0.0
        ready = self._selector.select(wait_s)
        now = time.monotonic()
        if now - self._now > HELD_UP_S + TICK_S:
            self._held_up(now - self._now)
        self._now = now
        self._obey()  # before reading: what the caller said first counts first
        for key, mask in ready:
            if key.fileobj is self._wake_read:
                self._wake_read.recv(4096)
            else:
                self._ready_on(key.data, mask)
        self._work(now)
        if now - self._ticked_at >= TICK_S:
            self._ticked_at = now
            self._tick(now)
        self._hand_over()

    def _obey(self) -> None:
        while self._commands:
            try:
                action = self._commands.popleft()
            except IndexError:  # `command` has taken it back
                return
            action()

    def _wait_s(self) -> float:
        if self._commands:
            return 0.0
        return max(0.0, min(self._ticked_at + TICK_S, self._next_at()) - time.monotonic())

    def _hand_over(self) -> None:
        while self._events:
            events, self._events = self._events, []
            try:
                self.on_events(events)
            except Exception:  # noqa: BLE001 - the caller's bug must not stop the network; the log has it
                _log.exception("on_events raised")
