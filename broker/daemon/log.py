"""Where the daemon's words go: plain lines with the journal's priority prefix, or a coloured terminal.

Text from outside (job names, client names) is escaped, so that nobody can forge a line or paint on a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import Any, Protocol, cast

import structlog

from broker.daemon.text import printable

_PRIORITY = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""syslog(3) levels, which systemd reads as `<N>` at the start of a line (sd-daemon(3))."""


class Log(Protocol):
    """The part of structlog that the daemon uses."""

    def debug(self, event: str, **fields: Any) -> Any:
        """For whoever debugs the daemon."""

    def info(self, event: str, **fields: Any) -> Any:
        """Something happened as it should."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Somebody should look at this one day."""

    def error(self, event: str, **fields: Any) -> Any:
        """Something does not work; the daemon goes on."""


def open_log(*, verbose: bool = False) -> Log:
    """Configure structlog for this process and give its logger."""
    journal = "JOURNAL_STREAM" in os.environ or not sys.stderr.isatty()
    renderer: Any = (
        _plain if journal else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    stamp = [] if "JOURNAL_STREAM" in os.environ else [structlog.processors.TimeStamper(fmt="iso", utc=True)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *stamp,
            structlog.processors.format_exc_info,
            _escape,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(10 if verbose else 20),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    return cast(Log, structlog.get_logger())


def _escape(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            event[key] = printable(value, length_max=2000)
    return event


def _plain(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    level = str(event.pop("level", "info"))
    prefix = (
        f"<{_PRIORITY.get(level, 6)}>" if "JOURNAL_STREAM" in os.environ else f"{event.pop('timestamp', '')} {level}: "
    )
    exception = event.pop("exception", None)
    fields = "".join(f" {key}={_field(value)}" for key, value in event.items() if key != "event" and value is not None)
    line = f"{prefix}{event.get('event', '')}{fields}"
    return line if exception is None else f"{line}\n{exception}"


def _field(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text
