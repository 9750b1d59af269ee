"""Averages of classes and jobs over the guarantees' windows, and what connections send now. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct, field

from broker.api.documents.window_average import Average, Averages
from broker.law.decision import Decision
from broker.law.sharing.demand import BACKLOG_BYTES_MIN
from broker.measure.tcp_diag import TcpConnection
from broker.model.values import InterfaceSample, Measurements
from broker.policy.types import Policy

NOW_S = 2.0
"""What a connection sends "now": long enough to have two readings of one that is looked at once a second."""


class AveragesSnapshot(Struct, frozen=True):
    """As of one tick: `classes` and `towards` over the window, `classes_now` and `destinations` over two seconds.

    Keys: (interface, class); of jobs (interface, class, job's key); of destinations (interface, class, address).
    `arriving` is what comes in now, by interface; `sent` and `received` are what connections do now, by their keys.
    """

    classes: Mapping[Hashable, Average] = field(default_factory=dict)
    jobs: Mapping[Hashable, Average] = field(default_factory=dict)
    classes_now: Mapping[Hashable, Average] = field(default_factory=dict)
    arriving: Mapping[Hashable, Average] = field(default_factory=dict)
    destinations: Mapping[Hashable, Average] = field(default_factory=dict)
    towards: Mapping[Hashable, Average] = field(default_factory=dict)
    sent: Mapping[Hashable, Average] = field(default_factory=dict)
    received: Mapping[Hashable, Average] = field(default_factory=dict)


NOTHING_YET = AveragesSnapshot()


class ClassAverages:
    """For one thread."""

    def __init__(self) -> None:
        self._classes, self._jobs, self._towards = (Averages(parts=12) for _ in range(3))
        self._now, self._arriving, self._destinations = (Averages(parts=4) for _ in range(3))
        self._sent, self._received = Averages(parts=4), Averages(parts=4)

    def follow(
        self, measurements: Measurements, tcp: Iterable[tuple[TcpConnection, str]], *, decision: Decision,
        policy: Policy, now_s: float,
    ) -> AveragesSnapshot:  # fmt: skip
        """Take in one tick.

        Args:
            measurements: the tick's.
            tcp: connections that are shown.
            decision: made of these measurements.
            policy: whose windows count.
            now_s: the tick's time.
        """
        windows_s = {entry.name: entry.guarantee_window_s for entry in policy.classes}
        held_back = {
            (entry.name, one.name): one.held_back_bytes
            for entry in decision.allocation.interfaces
            for one in entry.classes
        }
        for sample in measurements.interfaces:
            if sample.counters_age_s is not None:
                read_s = now_s - sample.counters_age_s
                self._follow_link(sample, held_back, windows_s, read_s=read_s)
            if sample.received_bytes is not None:
                self._arriving.follow(sample.name, sample.received_bytes, window_s=NOW_S, now_s=now_s)
            for flow in sample.flows:
                if flow.source == "report":
                    self._count(flow.key, flow.delivered_bytes, flow.received_bytes, now_s=now_s - flow.age_s)
        for one, _ in tcp:
            self._count(one.question, one.acked_bytes, one.received_bytes, now_s=one.at_s)
        return AveragesSnapshot(
            classes=self._classes.known(), jobs=self._jobs.known(), classes_now=self._now.known(),
            arriving=self._arriving.known(), destinations=self._destinations.known(), towards=self._towards.known(),
            sent=self._sent.known(), received=self._received.known(),
        )  # fmt: skip

    def _follow_link(
        self, sample: InterfaceSample, held_back: Mapping[tuple[str, str], int], windows_s: Mapping[str, float], *,
        read_s: float,
    ) -> None:  # fmt: skip
        for one in sample.classes:
            waits = one.backlog_bytes - held_back.get((sample.name, one.name), 0)
            self._classes.follow(
                (sample.name, one.name), one.sent_bytes, window_s=windows_s[one.name], now_s=read_s,
                waiting=waits >= BACKLOG_BYTES_MIN,
            )  # fmt: skip
            self._now.follow((sample.name, one.name), one.sent_bytes, window_s=NOW_S, now_s=read_s)
        for job in sample.jobs:
            self._jobs.follow(
                (sample.name, job.traffic_class, *job.key),
                job.sent_bytes,
                window_s=windows_s[job.traffic_class],
                now_s=read_s,
            )
        for towards in sample.destinations:
            key = (sample.name, towards.traffic_class, towards.address)
            self._destinations.follow(key, towards.sent_bytes, window_s=NOW_S, now_s=read_s)
            window_s = windows_s[towards.traffic_class]
            self._towards.follow(key, towards.sent_bytes, window_s=window_s, now_s=read_s)

    def _count(self, key: Hashable, sent_bytes: int | None, received_bytes: int | None, *, now_s: float) -> None:
        if sent_bytes is not None:
            self._sent.follow(key, sent_bytes, window_s=NOW_S, now_s=now_s)
        if received_bytes is not None:
            self._received.follow(key, received_bytes, window_s=NOW_S, now_s=now_s)
