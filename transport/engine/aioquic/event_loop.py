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
"""The thread works at least so often."""
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
    def _work(self, ready: Sequence[tuple[Any, int]], lost_s: float) -> None:
        """Read, run timers and send.

        Args:
            ready: what is ready of what was registered in the selector, and for what it is.
            lost_s: so long the thread could not run; 0 for what is usual.
        """

    @abc.abstractmethod
    def _next_at(self) -> float:
        """When there is more to do, whatever happens until then."""

    @abc.abstractmethod
    def _say_goodbye(self) -> None:
        """The caller closes: end everything in good order."""

    @abc.abstractmethod
    def _fail_everything(self, error: TransportError) -> None:
        """Give every operation and connection that is left its last event."""

    def _turn(self) -> None:
        wait_s = 0.0 if self._commands else max(0.0, self._next_at() - time.monotonic())
        if 0 < wait_s < POLL_S_MIN:
            time.sleep(wait_s)
            wait_s = 0.0
        ready = [(key.data, mask) for key, mask in self._selector.select(wait_s)]
        before, self._now = self._now, time.monotonic()
        took_s = self._now - before
        if (None, selectors.EVENT_READ) in ready:
            ready.remove((None, selectors.EVENT_READ))
            self._wake_read.recv(4096)
        self._obey()  # before reading: what the caller said first counts first
        self._work(ready, took_s if took_s > HELD_UP_S + TICK_S else 0.0)
        self._hand_over()

    def _obey(self) -> None:
        while self._commands:
            try:
                action = self._commands.popleft()
            except IndexError:  # `command` has taken it back
                return
            action()

    def _hand_over(self) -> None:
        while self._events:
            events, self._events = self._events, []
            try:
                self.on_events(events)
            except Exception:  # noqa: BLE001 - the caller's bug must not stop the network; the log has it
                _log.exception("on_events raised")
