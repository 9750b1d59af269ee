"""The daemon's log, through structlog: one line an event, `EVENT key=value …`, on standard error.

The journal gets each line with its syslog priority; a terminal gets colours; a file or a pipe gets time and level.
Each event is also kept for `hive-qos log` (`broker.events.recent`), debug events too.
`broker.events.catalogue` lists all events. Text from outside (names of jobs, clients, interfaces) is escaped, so that
nobody can forge a line or send escape codes to a terminal. A line that cannot be written is lost.

A user of the broker can cause an event again and again. Such events carry `uid`, and one event of one user is limited
to `LINES_AT_ONCE` lines, then one in 1/`LINES_PER_S` seconds: a job of many ranks logs all of its sessions, and a loop
of refused connections does not fill the disk. The next line says by `left_out` how many are missing.
An alarm may carry a name that a user chose, so lines without `uid` are limited likewise by their `code`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol, TextIO, cast

import structlog

from broker.events.recent import RecentEvents
from broker.model.token_bucket import TokenBucket
from hive_qos.text import printable

PRIORITY: Final = {"error": 3, "warning": 4, "info": 6, "debug": 7}
"""syslog(3) levels, which systemd reads as `<N>` at the start of a line (sd-daemon(3))."""
TEXT_MAX = 2000
"""Characters of one value: a path has at most 4096 bytes and says enough by then; a foreign name may have no end."""
TRACEBACK_MAX = 20_000
LINES_PER_S, LINES_AT_ONCE = 0.1, 30.0
KINDS_MAX = 1024
"""Pairs of event and user, or code, whose lines are counted; the oldest is forgotten."""

_Entry = MutableMapping[str, Any]
Forward = Callable[[Mapping[str, Any]], None]
_logfmt = structlog.processors.LogfmtRenderer(bool_as_flag=False)


class Log(Protocol):
    """What the daemon writes events to: structlog's bound logger, or a test's. A key that is None is left out."""

    def debug(self, event: str, **keys: Any) -> Any:
        """Write for debugging the daemon."""

    def info(self, event: str, **keys: Any) -> Any:
        """Write that something happened as it should."""

    def warning(self, event: str, **keys: Any) -> Any:
        """Write what somebody should look at one day."""

    def error(self, event: str, **keys: Any) -> Any:
        """Write that something does not work while the daemon goes on. `exc_info=True` adds the handled exception."""


def open_log(*, verbose: bool = False, recent: RecentEvents | None = None, forward: Forward | None = None) -> Log:
    """Open the log of this process: for the journal where systemd connects standard error to it (JOURNAL_STREAM)."""
    journal = "JOURNAL_STREAM" in os.environ
    return make_log(sys.stderr, journal=journal, verbose=verbose, recent=recent, forward=forward)


def make_log(
    out: TextIO,
    *,
    journal: bool,
    verbose: bool = False,
    clock: Callable[[], float] = time.monotonic,
    recent: RecentEvents | None = None,
    forward: Forward | None = None,
) -> Log:
    """Make a log that any thread may use.

    Args:
        out: where lines go.
        journal: systemd's journal reads them; it has times of its own.
        verbose: write debug events, too.
        clock: monotonic seconds.
        recent: keeps the last events, debug events too; None keeps none.
        forward: also gets each event that is written, escaped, with its `event` and `level`.
    """

    def forwarded(logger: object, method: str, entry: _Entry) -> _Entry:
        if forward is not None:
            forward(entry)
        return entry

    render: list[Any] = [structlog.processors.TimeStamper(fmt="iso", utc=True), _plain_line]
    if journal:
        render = [_journal_line]
    elif out.isatty():
        render[-1] = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    keep = [_keeper(recent, verbose=verbose)] if recent is not None else []
    level = logging.DEBUG if verbose or recent is not None else logging.INFO
    log = structlog.wrap_logger(
        _Lines(out),
        processors=[
            structlog.processors.add_log_level,
            LineLimit(clock=clock),
            structlog.processors.format_exc_info,
            _printable,
            *keep,
            forwarded,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return cast(Log, log.bind())


class _Lines(structlog.PrintLogger):
    """Writes lines where it can: a full disk or a closed pipe must not end who logs."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    debug = info = warning = error = msg


def _keeper(recent: RecentEvents, *, verbose: bool) -> Callable[[object, str, _Entry], _Entry]:
    """The processor that keeps each event, and lets debug events go no further where nobody asked for them."""

    def keep(logger: object, method: str, entry: _Entry) -> _Entry:
        keys = {name: value for name, value in entry.items() if name not in ("event", "level", "exception")}
        recent.add(str(entry["level"]), str(entry["event"]), keys)
        if entry["level"] == "debug" and not verbose:
            raise structlog.DropEvent
        return entry

    return keep


class LineLimit:
    """The processor that drops what one user, or one kind of alarm, causes too often. For any thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kinds: dict[tuple[str, object], _Kind] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def __call__(self, logger: object, method: str, entry: _Entry) -> _Entry:
        """Pass an event on, with the number of those that were dropped before it.

        Raises:
            structlog.DropEvent: not this one.
        """
        by = next((name for name in ("uid", "code") if name in entry), None)
        if by is None:
            return entry
        key, now_s = (str(entry["event"]), entry[by]), self._clock()
        with self._lock:
            kind = self._kinds.pop(key, None) or _Kind(now_s)
            self._kinds[key] = kind
            while len(self._kinds) > KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            if not kind.allowance.take(now_s=now_s):
                kind.left_out += 1
                raise structlog.DropEvent
            entry["left_out"], kind.left_out = kind.left_out or None, 0
        return entry


class _Kind:
    def __init__(self, now_s: float) -> None:
        self.allowance = TokenBucket(per_s=LINES_PER_S, at_once=LINES_AT_ONCE, now_s=now_s)
        self.left_out = 0


def _printable(logger: object, method: str, entry: _Entry) -> _Entry:
    """Escape all texts, shorten figures, and leave out what is None."""
    return {key: _shown(key, value) for key, value in entry.items() if value is not None}


def _shown(key: str, value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return value
    if key == "exception":
        return printable(str(value), length_max=TRACEBACK_MAX, lines=True)
    return printable(str(value), length_max=TEXT_MAX)


def _journal_line(logger: object, method: str, entry: _Entry) -> str:
    """`<4>EVENT key=value …`; each line of a traceback has the priority too, since systemd reads line by line."""
    prefix = f"<{PRIORITY[entry.pop('level')]}>"
    return "\n".join(prefix + line for line in _lines(entry))


def _plain_line(logger: object, method: str, entry: _Entry) -> str:
    """`TIME LEVEL: EVENT key=value …`, then a traceback."""
    prefix = f"{entry.pop('timestamp')} {entry.pop('level')}: "
    return prefix + "\n".join(_lines(entry))


def _lines(entry: _Entry) -> list[str]:
    event, traceback = str(entry.pop("event")), str(entry.pop("exception", ""))
    keys = _logfmt(None, "", entry)
    return [f"{event} {keys}" if keys else event, *(f"  {line}" for line in traceback.splitlines())]
