"""Tells what the decision found as events: alarms that come and go, links that carry less, limits that change.

A decision is made ten times a second, and much in it moves. So an event needs something to stay, or to move by a lot:
the log of a busy host stays readable, and what is kept of it reaches back for hours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from broker.api.documents.snapshot import Snapshot
from broker.events.log import Log
from broker.model.values import Alarm, InterfaceAllocation
from hive_qos.units import format_rate

CLEARED_S = 30.0
"""An alarm that comes back sooner was never away."""
CHANGED = 0.2
"""Part by which a capacity has to differ from the one that was told last."""
PREVAILS_S, PREVAILS = 3.0, 0.5
"""A cause limits somebody once it has lasted so long, and for this part of the time."""
AGAIN_S = 60.0
"""Two causes may both prevail, and take turns with each burst: a change of one limit is told once a minute."""


class _Told(NamedTuple):
    """What was told last of somebody's limit, and when."""

    code: str
    at_s: float


_NOTHING_TOLD = _Told("idle", -math.inf)


class DecisionEvents:
    """For the loop's thread. What it remembers is as large as the snapshot."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._alarms: dict[tuple[str, str], float] = {}
        self._capacities: dict[tuple[str, str], int] = {}
        self._limits: dict[object, _Told] = {}

    def follow(self, snapshot: Snapshot, *, now_s: float) -> None:
        """Compare with what was told before, and tell what is new."""
        self._follow_alarms(snapshot.alarms, now_s=now_s)
        allocation = snapshot.decision.allocation
        links = {(one.name, "sends"): one for one in allocation.interfaces}
        links |= {(one.name, "receives"): one for one in allocation.ingress}
        self._follow_capacities(links)
        self._follow_limits(snapshot, now_s=now_s)

    def _follow_alarms(self, alarms: tuple[Alarm, ...], *, now_s: float) -> None:
        for one in alarms:
            if (one.code, one.subject) not in self._alarms:
                self._log.warning("alarm-raised", code=one.code, subject=one.subject, text=one.text)
            self._alarms[one.code, one.subject] = now_s
        for (code, subject), seen_s in list(self._alarms.items()):
            if now_s - seen_s > CLEARED_S:
                del self._alarms[code, subject]
                self._log.info("alarm-cleared", code=code, subject=subject)

    def _follow_capacities(self, links: dict[tuple[str, str], InterfaceAllocation]) -> None:
        told: dict[tuple[str, str], int] = {}
        for (name, direction), one in links.items():
            now, before = one.capacity_bits_per_s, self._capacities.get((name, direction))
            if before is not None and abs(now - before) > CHANGED * before:
                self._log.debug(
                    "capacity-changed", interface=name, direction=direction, before=format_rate(before),
                    rate=format_rate(now), reason=one.capacity_reason.text,
                )  # fmt: skip
                before = None
            told[name, direction] = now if before is None else before
        self._capacities = told

    def _follow_limits(self, snapshot: Snapshot, *, now_s: float) -> None:
        told: dict[object, _Told] = {}
        for key, lasting in snapshot.lasting.items():
            limit, last = lasting.limit, self._limits.get(key, _NOTHING_TOLD)
            prevails = lasting.for_s >= PREVAILS_S and lasting.part >= PREVAILS
            if prevails and limit.code != last.code and now_s - last.at_s >= AGAIN_S:
                interface, traffic_class, uid, job = (*key, None, None)[:4]
                self._log.debug(
                    "limit-changed", interface=interface, traffic_class=traffic_class, job=job, uid=uid,
                    limited_by=limit.code, before=last.code, text=limit.text or None,
                )  # fmt: skip
                last = _Told(limit.code, now_s)
            told[key] = last
        self._limits = told
