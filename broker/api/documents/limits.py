"""What limits each class and job of a snapshot, and for how long it has. Pure.

A burst, its pause and what storage lends alternate several times a second. So a cause that comes back within
`RETURNS_S` has lasted all the time, and `part` says for how much of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from broker.api.documents import verdicts
from broker.api.documents.snapshot import Lasting, Snapshot
from broker.api.documents.window_average import Average
from broker.law.sharing.promises import LENDER
from broker.model.reasons import Reason
from broker.model.values import FlowSample, InterfaceAllocation

Key = tuple[object, ...]
RETURNS_S = 10.0
"""Longer than a step of most training, and shorter than what a person calls a change."""


def link_figures(snapshot: Snapshot, entry: InterfaceAllocation) -> verdicts.LinkFigures:
    """Give one outbound link's figures for the verdicts."""
    figures = snapshot.figures

    def of(known: Mapping[Hashable, Average], *key: str) -> dict[str, Average]:
        """By the last part of the keys that begin with these."""
        return {str(name[-1]): one for name, one in known.items() if isinstance(name, tuple) and name[:-1] == key}

    return verdicts.LinkFigures(
        entry=entry,
        averages=of(figures.classes, entry.name),
        lender_now=figures.classes_now.get((entry.name, LENDER)),
        windows_s={one.name: one.guarantee_window_s for one in snapshot.policy.classes},
        destinations=of(figures.destinations, entry.name, LENDER),
        towards=of(figures.towards, entry.name, LENDER),
        peers={lease.address: lease.peer for lease, _ in snapshot.holds.leases},
        inbound=next((one for one in snapshot.decision.allocation.ingress if one.name == entry.name), None),
        arriving=figures.arriving.get(entry.name),
    )


def limits(snapshot: Snapshot) -> dict[Key, Reason]:
    """What limits each class, by (interface, class), and each job, by (interface, class, user, job)."""
    found: dict[Key, Reason] = {}
    samples = {one.name: one for one in snapshot.measurements.interfaces}
    for entry in snapshot.decision.allocation.interfaces:
        link = link_figures(snapshot, entry)
        classes = {one.name: one for one in entry.classes}
        for one in entry.classes:
            found[entry.name, one.name] = verdicts.class_limit(link, one)
        flows = _by_job(samples[entry.name].flows) if entry.jobs and entry.name in samples else {}
        for part in entry.jobs:
            mine = flows.get((*part.key, part.traffic_class), [])
            used = snapshot.load.processors_used
            limit = verdicts.job_limit(link, part, classes[part.traffic_class], flows=mine, processors_used=used)
            found[entry.name, part.traffic_class, *part.key] = limit
    return found


def _by_job(flows: Iterable[FlowSample]) -> dict[Key, list[FlowSample]]:
    """All in one pass: at each tick there may be thousands of flows, and dozens of jobs."""
    found: dict[Key, list[FlowSample]] = {}
    for one in flows:
        found.setdefault((one.uid, one.job, one.traffic_class), []).append(one)
    return found


@dataclass
class _Seen:
    """One cause: since when it has come back again and again, when it was seen last, and for how long in all."""

    began_s: float
    last_s: float
    held_s: float = 0.0


class LimitHistory:
    """For one thread. Of each class and job it keeps the causes of the last `RETURNS_S` seconds, one of each code."""

    def __init__(self) -> None:
        self._seen: dict[Key, dict[str, _Seen]] = {}
        self._last_s: float | None = None

    def follow(
        self, found: Mapping[tuple[object, ...], Reason], *, now_s: float
    ) -> Mapping[tuple[object, ...], Lasting]:
        """Take in what limits everybody now. Who is not there any more is forgotten.

        Returns:
            Of each how long its present cause has lasted.
        """
        passed_s = 0.0 if self._last_s is None else now_s - self._last_s
        seen: dict[Key, dict[str, _Seen]] = {}
        lasting: dict[Key, Lasting] = {}
        for key, limit in found.items():
            causes = {code: one for code, one in self._seen.get(key, {}).items() if now_s - one.last_s <= RETURNS_S}
            cause = causes.setdefault(limit.code, _Seen(began_s=now_s, last_s=now_s))
            if cause.began_s < now_s:
                cause.held_s += passed_s
            cause.last_s = now_s
            seen[key] = causes
            for_s = now_s - cause.began_s
            lasting[key] = Lasting(limit, for_s, min(1.0, cause.held_s / for_s) if for_s > 0 else 1.0)
        self._seen, self._last_s = seen, now_s
        return lasting
