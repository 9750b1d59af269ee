"""What a request for `/v1/log` asks, and its answer."""

from __future__ import annotations

import math
import urllib.parse

from msgspec import Struct

from broker.api.documents.schema import LogEvent, RecentLog
from broker.events.catalogue import EVENTS
from broker.events.recent import LEVELS, RecentEvents


class LogQuestion(Struct, frozen=True):
    """Events with a larger number than `after`, since a time, at least as grave; of these the last `limit`."""

    after: int = 0
    since_s: float = 0.0
    level: str = "debug"
    limit: int | None = None


def log_question(query: str) -> LogQuestion:
    """Read `after=17&since_s=...&level=warning&limit=50`; the default is all that is kept.

    Raises:
        ValueError: it cannot be understood; the text says what could.
    """
    found = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=4, strict_parsing=bool(query)))
    try:
        after, since_s = int(found.pop("after", "0")), float(found.pop("since_s", "0"))
        limit = int(found.pop("limit")) if "limit" in found else None
    except ValueError:
        raise ValueError("after and limit are whole numbers, since_s is a number of seconds since 1970") from None
    level = found.pop("level", "debug")
    if found:
        raise ValueError(f"/v1/log knows after, since_s, level and limit, not {', '.join(sorted(found))}")
    if after < 0 or (limit is not None and limit < 1) or not math.isfinite(since_s):
        raise ValueError("after is at least 0, limit at least 1, since_s finite")
    if level not in LEVELS:
        raise ValueError(f"level={level}: one of {', '.join(LEVELS)}")
    return LogQuestion(after, since_s, level, limit)


def recent_log(recent: RecentEvents, wanted: LogQuestion) -> RecentLog:
    """Give the events that are asked for, each with its meaning."""
    found = recent.after(wanted.after, since_s=wanted.since_s, level=wanted.level)
    shown = found if wanted.limit is None else found[-wanted.limit :]
    return RecentLog(
        began_s=recent.began_s,
        events=[
            LogEvent(
                number=one.number, at_s=one.at_s, level=one.level, event=one.event,  # type: ignore[arg-type]
                meaning=EVENTS[one.event].meaning if one.event in EVENTS else "", keys=one.keys,
            )
            for one in shown
        ],
        left_out=len(found) - len(shown),
    )  # fmt: skip
