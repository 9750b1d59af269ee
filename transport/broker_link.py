"""What the broker of this host is told: our sockets, our bursts, what our connections measure. Never required.

The copies of the sockets that are kept for the broker are closed in a forked child, like the session itself.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping

from broker.client import Session, SessionState
from transport.bursts import BurstTracker
from transport.engine.base import ConnectionStatistics, Engine
from transport.sockets import Sockets

REPORT_S = 0.1
"""The broker decides ten times a second."""


class BrokerLink:
    """One session, fed from the transport's thread. Inert where the broker is `off`, patient where it is absent."""

    def __init__(self, *, job: str, socket_path: str | None) -> None:
        self._session = Session(job=job, socket_path=socket_path)
        self._bursts = BurstTracker()
        self._next_report_s = 0.0
        self._marked: list[socket.socket] = []
        _living.add(self)

    def register(self, sockets: Sockets) -> None:
        """Pass both sockets, so that the broker marks them. They are duplicated: the engine owns the originals."""
        if self._session.state is SessionState.OFF:
            return
        for sock, role in ((sockets.compute, "gradient"), (sockets.bulk, "bulk")):
            copy = sock.dup()
            self._marked.append(copy)
            self._session.register(copy, traffic_class="compute", role=role)

    def collective_begins(self, now_s: float, bytes_by_destination: Mapping[str, int]) -> None:
        """A collective begins that sends so much to each address."""
        announcement = self._bursts.begun(now_s, bytes_by_destination)
        if announcement is not None:
            self._session.announce(
                step=announcement.step,
                bytes_by_destination=announcement.bytes_by_destination,
                deadline_s=announcement.deadline_s,
                next_s=announcement.next_s,
            )

    def collective_ends(self, now_s: float) -> None:
        """One of those has ended."""
        self._bursts.ended(now_s)

    def tick(self, now_s: float, engine: Engine | None) -> float:
        """Report what is due; returns when to be called next."""
        over = self._bursts.tick(now_s)
        if over is not None:
            self._session.announce_end(step=over)
        wake_s = self._bursts.next_wake_s()
        if engine is None or self._session.state is not SessionState.CONNECTED:
            return wake_s
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + REPORT_S
            self._session.report([_report(one) for one in engine.statistics().values()])
        return min(wake_s, self._next_report_s)

    def close(self) -> None:
        """End the session and give our copies of the sockets back."""
        self._session.close()
        self._close_copies()

    def _close_copies(self) -> None:
        for sock in self._marked:
            sock.close()
        self._marked.clear()


_living: weakref.WeakSet[BrokerLink] = weakref.WeakSet()


def _close_in_child() -> None:
    for link in list(_living):
        link._close_copies()


os.register_at_fork(after_in_child=_close_in_child)


def _report(one: ConnectionStatistics) -> dict[str, object]:
    host, port = one.remote
    return {
        "peer": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "rtt_s": one.rtt_s,
        "rtt_latest_s": one.rtt_latest_s,
        "rtt_s_min": one.rtt_s_min,
        "delivered_bytes": one.delivered_bytes,
        "lost_packets": one.lost_packets,
        "sent_packets": one.sent_packets,
        "delivery_rate_bits_per_s": one.delivery_rate_bits_per_s,
        "application_limited": one.application_limited,
        "class": "compute",
    }
