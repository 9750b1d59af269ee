"""When a member leaves by itself: at a time of the day, or as long as a schedule of the broker's holds.

A thread looks at the wall clock and asks the broker of this host. So a host that slept through the time leaves when it
wakes. What knows better that the owner is back, such as a desktop's session, sends the process its signal.
"""

from __future__ import annotations

import datetime
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from broker.client import http, protocol
from hive_qos.errors import HiveError, MisuseError

LOOK_S = 1.0
"""A person who comes back waits so long for what the broker says; `hive-qos top` asks it as often."""
_log = logging.getLogger("transport.volatile")


def watch(
    *, at: str, schedule: str, broker: str | None, leave: Callable[[], None], is_over: Callable[[], bool]
) -> None:  # fmt: skip
    """Call `leave` once, in a thread, when the time has come or the schedule holds; not if `is_over` before.

    Args:
        at: the next time that the local clock shows this, such as "08:00"; "" for never.
        schedule: the name of a `[[schedule]]` in the broker's file; "" for none.
        broker: as of `Settings`.

    Raises:
        MisuseError: `at` is no time of the day, the broker has no such schedule, or it is `off`.
        BrokerUnavailableError, BrokerRejectedError: there is a schedule, and no broker here that tells of it.
    """
    at_s = next_s(at, datetime.datetime.now()) if at else math.inf
    path = protocol.broker_socket_path(broker)
    if schedule:
        if protocol.session_socket_path(broker) is None:
            raise MisuseError(f"the schedule {schedule!r} is the broker's, and HIVE_BROKER is off")
        _require_known(schedule, http.status(path))

    def run() -> None:
        answers = True
        while not is_over():
            if time.time() >= at_s:
                _log.info("this member leaves: it is %s", at)
                return leave()
            try:
                if schedule and _holds(schedule, path):
                    _log.info("this member leaves: the broker says that %r holds", schedule)
                    return leave()
                answers = True
            except HiveError as error:
                if answers:
                    _log.warning("this member stays until the broker answers: %s", error)
                answers = False
            time.sleep(min(LOOK_S, max(at_s - time.time(), 0.0)))

    threading.Thread(target=run, name="hive-volatile-departure", daemon=True).start()


def next_s(at: str, now: datetime.datetime) -> float:
    """When the local clock next shows a time, in seconds since 1970. `now` is on that clock, without a zone.

    Raises:
        MisuseError: it is no time of the day.
    """
    try:
        wanted = datetime.time.fromisoformat(at)
    except ValueError:
        wanted = None
    if wanted is None or wanted.tzinfo is not None:
        raise MisuseError(f'at is {at!r}: write a time of the day on this host\'s clock, such as "08:00"')
    today = datetime.datetime.combine(now.date(), wanted)
    return (today if today > now else today + datetime.timedelta(days=1)).timestamp()


def _require_known(schedule: str, status: dict[str, Any]) -> None:
    configuration = status.get("configuration")
    known = configuration.get("schedules") if isinstance(configuration, dict) else None
    if isinstance(known, list) and schedule not in known:
        names = ", ".join(repr(str(one)) for one in known)
        has = f"it has {names}" if names else "write a [[schedule]] of that name into its file"
        raise MisuseError(f"the broker has no schedule {schedule!r}: {has}")


def _holds(schedule: str, path: str) -> bool:
    held = http.status(path).get("schedules")
    return isinstance(held, list) and any(isinstance(one, dict) and one.get("name") == schedule for one in held)
