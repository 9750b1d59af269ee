"""The answer to a request for `/v1/log`."""

from __future__ import annotations

from msgspec import UNSET

from broker.api.documents.schema import LogEvent, RecentLog
from broker.api.questions import LogQuestion
from broker.events.catalogue import EVENTS
from broker.events.recent import RecentEvents


def recent_log(recent: RecentEvents, wanted: LogQuestion) -> RecentLog:
    """Give the events that are asked for, each with its meaning."""
    found = recent.after(wanted.after, since_s=wanted.since_s, level=wanted.level)
    shown = found if wanted.limit is UNSET else found[-wanted.limit :]
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
