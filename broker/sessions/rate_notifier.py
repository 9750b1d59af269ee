"""Report to each session that wants rates its part of what its class could send over the route's link.

A rate is reported where all of a session's peers are reached through one shaped interface. With several routes, or
one that is not shaped (the same host), no single figure is true of its socket. A class' offer is divided by weight
among its jobs (`broker.law.sharing.available_rate`), and a job's among its sessions that send at present, equally; a
session gets the rate that it would have if it began now, and the others learn of it at the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.law.sharing.available_rate import offered_to_job_bits_per_s
from broker.measure.flow_table import FlowTable
from broker.model.values import Allocation, InterfaceAllocation
from broker.sessions.messages import RateNotice
from broker.sessions.server import Session

VALID_S = 3.0
"""How long a rate counts without a new report."""
REPEAT_S = 1.0
CHANGE = 0.02
"""Less than this is no news; the broker's dead band."""


class RateNotifier:
    """The last reports to each session."""

    def __init__(self, flows: FlowTable) -> None:
        self._flows = flows
        self._reported: dict[tuple[str, str], tuple[int | None, float]] = {}

    def notify(
        self,
        allocation: Allocation,
        sessions: Iterable[Session],
        *,
        interface_of: Callable[[str], str | None],
        now_s: float,
    ) -> None:
        """Report rates that changed to each session, and unchanged ones once a second."""
        listening = [session for session in sessions if session.machine.hello.rates]
        if not listening:
            self._reported.clear()
            return
        offers = {entry.name: entry for entry in allocation.interfaces}
        busy = self._flows.senders(interface_of=interface_of, now_s=now_s)
        reported: dict[tuple[str, str], tuple[int | None, float]] = {}
        for session in listening:
            for name in self._flows.classes_of(session.name):
                key = (session.name, name)
                rate: int | None = None
                interface = self._flows.only_interface(session.name, interface_of=interface_of, now_s=now_s)
                if interface is not None and interface in offers:
                    others = busy.get((interface, name), frozenset()) - {session.name}
                    rate = self._part(session.name, others, offers[interface], name)
                reported[key] = self._reported.get(key, (None, now_s))
                if _is_news(rate, reported[key], now_s):
                    notice = RateNotice(traffic_class=name, rate_bits_per_s=rate, valid_s=VALID_S)
                    session.send(notice)  # one that is not taken is repeated soon
                    reported[key] = (rate, now_s)
            reported_now = {name: reported[session.name, name][0] for name in self._flows.classes_of(session.name)}
            session.reported_bits_per_s = {name: rate for name, rate in reported_now.items() if rate is not None}
        self._reported = reported

    def _part(self, session: str, others: frozenset[str], interface: InterfaceAllocation, name: str) -> int:
        job = self._flows.job_of(session)
        jobs = [self._flows.job_of(other) for other in others]
        offered = offered_to_job_bits_per_s(interface, name, job, sending=frozenset(jobs))
        return offered // (jobs.count(job) + 1)


def _is_news(rate: int | None, reported: tuple[int | None, float], now_s: float) -> bool:
    last, at_s = reported
    if rate is None or last is None:
        return rate != last
    return abs(rate - last) > CHANGE * last or now_s - at_s >= REPEAT_S
