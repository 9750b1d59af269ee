"""Where the daemon's words go: plain lines, with the journal's priority prefix where that reads them.

Text from outside (job names, client names) is escaped, so that nobody can forge a line or paint on a terminal. What one
user can bring about again and again is written so often and no more; the next line of it says how many were not. There
is no logging library in it: the torch backend's imports rich and asyncio, 10 MB that a daemon would hold for good.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from broker.model.token_bucket import TokenBucket
from hive_qos.text import printable

_PRIORITY = {"error": 3, "warning": 4, "info": 6, "debug": 7}
"""syslog(3) levels, which systemd reads as `<N>` at the start of a line (sd-daemon(3))."""
TEXT_MAX = 2000
"""Of one field: a path is at most 4096 bytes and says enough by then, a name of somebody else's may have no end."""
LINES_PER_S, LINES_AT_ONCE = 0.1, 30.0
"""Lines of one event and user: a job that starts or ends is told whole, a loop that is refused is not."""
KINDS_MAX = 1024
"""Events and users whose lines are counted, the latest."""


class Log(Protocol):
    """What the daemon says things to. Fields that are None are left out.

    A field `uid`, None included, says that a user brought it about: of one event and user some lines are written alone.
    """

    def debug(self, event: str, **fields: Any) -> Any:
        """For whoever debugs the daemon."""

    def info(self, event: str, **fields: Any) -> Any:
        """Something happened as it should."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Somebody should look at this one day."""

    def error(self, event: str, **fields: Any) -> Any:
        """Something does not work; the daemon goes on."""


def open_log(*, verbose: bool = False) -> Log:
    """The log of this process, on its standard error."""
    return Lines(sys.stderr, journal="JOURNAL_STREAM" in os.environ, verbose=verbose)


class Lines:
    """A log of one line an event. For any thread.

    Args:
        journal: systemd's journal reads it, which has times of its own.
        verbose: `debug` says something, too.
        clock: monotonic seconds.
    """

    def __init__(
        self, out: TextIO, *, journal: bool, verbose: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out, self._journal, self._verbose, self._clock = out, journal, verbose, clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, object], _Kind] = {}

    def debug(self, event: str, **fields: Any) -> None:
        """As `Log`."""
        if self._verbose:
            self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """As `Log`."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """As `Log`."""
        self._say("warning", event, fields)

    def error(self, event: str, *, exc_info: bool = False, **fields: Any) -> None:
        """As `Log`; with `exc_info` the exception that is being handled follows."""
        self._say("error", event, fields, traceback.format_exc() if exc_info else "")

    def _say(self, level: str, event: str, fields: dict[str, Any], exception: str = "") -> None:
        if "uid" in fields:
            with self._lock:
                left_out = self._left_out(event, fields["uid"])
            if left_out is None:
                return
            fields = {**fields, "left_out": left_out or None}
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        prefix = f"<{_PRIORITY[level]}>" if self._journal else f"{now} {level}: "
        shown = "".join(f" {key}={_field(value)}" for key, value in fields.items() if value is not None)
        text = f"{prefix}{printable(event, length_max=TEXT_MAX)}{shown}\n{exception}"
        with self._lock:
            self._out.write(text)
            self._out.flush()

    def _left_out(self, event: str, uid: object) -> int | None:
        """How many lines of a kind were not written before this one; None where this one is not either."""
        now_s = self._clock()
        kind = self._kinds.pop((event, uid), None) or _Kind(now_s)
        self._kinds[event, uid] = kind
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        if not kind.allowance.take(now_s=now_s):
            kind.left_out += 1
            return None
        left_out, kind.left_out = kind.left_out, 0
        return left_out


class _Kind:
    def __init__(self, now_s: float) -> None:
        self.allowance = TokenBucket(per_s=LINES_PER_S, at_once=LINES_AT_ONCE, now_s=now_s)
        self.left_out = 0


def _field(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if isinstance(value, str):
        text = printable(value, length_max=TEXT_MAX)
    return repr(text) if " " in text or not text else text
