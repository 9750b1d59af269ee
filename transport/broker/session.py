"""What we tell the broker of this host: our sockets, our bursts, what our connections measure.

Training works without a broker. We keep copies of the sockets for the broker. A forked
child closes them, like the session.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping

from broker.client import Session, SessionState
from transport.broker.bursts import BurstTracker
from transport.engine.base import ConnectionStatistics, Engine
from transport.mesh.one_way_delay import InboundDelay, OneWayDelay, OutboundDelay
from transport.mesh.sockets import Sockets

REPORT_S = 0.1
"""The broker decides ten times a second."""
ACTIVE_BYTES, ACTIVE_S = 3_000, 2.0
"""Two packets between two reports are traffic; a step of training has gaps shorter than two seconds."""
AGAIN_S = 0.005
"""To look again after somebody who announces; that takes a tenth of a millisecond."""


class BrokerSession:
    """One session, fed from the transport's thread. Inert where the broker is `off`, patient where it is absent."""

    def __init__(
        self,
        *,
        job: str,
        socket_path: str | None,
        delays: OneWayDelay,
        rank_of: Callable[[int], int | None],
    ) -> None:
        self._session = Session(job=job, socket_path=socket_path)
        self._delays = delays
        self._rank_of = rank_of
        self._activity: dict[int, tuple[int, float]] = {}
        self._announcing = threading.RLock()  # a signal's handler may call a collective in the middle of another
        self._bursts = BurstTracker()
        self._next_report_s = 0.0
        self._registered: dict[Sockets, list[tuple[int, socket.socket]]] = {}
        _living.add(self)

    def register(self, sockets: Sockets, *, instead_of: Sockets | None = None) -> None:
        """Pass both sockets of a pair, so that the broker marks them.

        They are duplicated: the engine owns the originals.
        """
        if self._session.state is SessionState.OFF:
            return
        if instead_of is not None:
            for number, copy in self._registered.pop(instead_of, ()):
                self._session.unregister(number)
                copy.close()
        copies = self._registered.setdefault(sockets, [])
        for sock, role in ((sockets.compute, "gradient"), (sockets.bulk, "bulk")):
            copy = sock.dup()
            copies.append((self._session.register(copy, traffic_class="compute", role=role), copy))

    def collective_begins(self, now_s: float, collective: Hashable, bytes_by_destination: Mapping[str, int]) -> None:
        """A collective begins that sends so many bytes of payload to each address. From any thread.

        The broker counts frames, 1.06 bytes for one of payload. So it sees all that was announced a little before the
        last packet leaves, and lets storage send again. Where less is sent than was announced, it waits for the report
        of the end, 50 ms longer.

        Whatever this raises, an interrupt among it: `collective_ends` is to be called.
        """
        with self._announcing:
            announcement = self._bursts.begun(now_s, collective, bytes_by_destination)
            if announcement is None:
                return
            self._session.announce(
                step=announcement.step,
                bytes_by_destination=announcement.bytes_by_destination,
                deadline_s=announcement.deadline_s,
                next_s=announcement.next_s,
            )

    def collective_ends(self, now_s: float, collective: Hashable) -> None:
        """One has ended; said again, or of one that never began, it changes nothing. From any thread.

        It waits for nobody: who announces may have been interrupted by a handler that waits for the transport's thread.
        """
        self._bursts.ended(now_s, collective)

    def tick(self, now_s: float, engine: Engine | None) -> float:
        """Report what is due; returns when to be called next."""
        wake_s = self._tell_end(now_s)
        if engine is None or self._session.state is not SessionState.CONNECTED:
            return wake_s
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + REPORT_S
            self._measure(engine.statistics(), now_s)
        return min(wake_s, self._next_report_s)

    def _tell_end(self, now_s: float) -> float:
        """Before the beginning of the next burst is told; returns when to look again."""
        if not self._announcing.acquire(blocking=False):  # `collective_ends` says why it is not waited for
            return now_s + AGAIN_S
        try:
            over = self._bursts.tick(now_s)
            if over is not None:
                self._session.announce_end(step=over)
            return self._bursts.next_wake_s()
        finally:
            self._announcing.release()

    def _measure(self, statistics: Mapping[int, ConnectionStatistics], now_s: float) -> None:
        """Report every connection, and ask the peers that we send to for the one-way delay."""
        sends: dict[int, int] = {}
        reports = []
        for number, one in statistics.items():
            rank = self._rank_of(number)
            outbound = None if rank is None else self._delays.outbound(rank)
            inbound = None if rank is None else self._delays.inbound(rank)
            reports.append(_report(one, outbound, inbound, now_s))
            sent_bytes, since_s = self._activity.get(number, (one.sent_bytes, -ACTIVE_S))
            if one.sent_bytes - sent_bytes >= ACTIVE_BYTES:
                since_s = now_s
            self._activity[number] = (one.sent_bytes, since_s)
            if rank is not None and not one.bulk and now_s - since_s < ACTIVE_S:
                sends[rank] = sends.get(rank, 0) + one.sent_bytes - sent_bytes
        self._activity = {number: entry for number, entry in self._activity.items() if number in statistics}
        self._delays.ask(sorted(sends, key=lambda rank: -sends[rank]), now_s)
        self._session.report(reports)

    def close(self) -> None:
        """End the session and give our copies of the sockets back."""
        self._session.close()
        self._close_copies()

    def _close_copies(self) -> None:
        for copies in self._registered.values():
            for _, copy in copies:
                copy.close()
        self._registered.clear()


_living: weakref.WeakSet[BrokerSession] = weakref.WeakSet()


def _close_in_child() -> None:
    for link in list(_living):
        link._close_copies()


os.register_at_fork(after_in_child=_close_in_child)


def _report(
    one: ConnectionStatistics, outbound: OutboundDelay | None, inbound: InboundDelay | None, now_s: float
) -> dict[str, object]:  # fmt: skip
    host, port = one.remote
    delays: dict[str, object] = {}
    if outbound is not None and not one.bulk and now_s - outbound.asked_s < ACTIVE_S:
        delays |= {"one_way_s": outbound.delay_s, "one_way_age_s": now_s - outbound.asked_s}
    if inbound is not None and not one.bulk and now_s - inbound.received_s < ACTIVE_S:
        delays |= {"inbound_s": inbound.delay_s, "inbound_age_s": now_s - inbound.received_s}
    return {
        **delays,
        "peer": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "rtt_s": one.rtt_s,
        "rtt_latest_s": one.rtt_latest_s,
        "rtt_s_min": one.rtt_s_min,
        "delivered_bytes": one.delivered_bytes,
        "received_bytes": one.received_bytes,
        "lost_packets": one.lost_packets,
        "sent_packets": one.sent_packets,
        "delivery_rate_bits_per_s": one.delivery_rate_bits_per_s,
        "application_limited": one.application_limited,
        "class": "compute",
    }
