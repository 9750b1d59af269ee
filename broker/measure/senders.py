"""Count what each address sends to us in each class, over all of its connections, present and past.

TCP says of each connection how many segments have arrived (tcpi_data_segs_in) and how long they are; what it has in
order (tcpi_bytes_received) would stand still behind each lost packet while the link is full, and jump when that comes.
A connection that ends takes its counter with it, so differences are added up here for the address and the class.
A connection counts from its first byte where the look before had all connections and not this one, so that it came
later; else from when we first saw it: it may have been there for a day, unseen among too many.

Round trips to their brokers stand beside. The engine says which was the last, not when it was measured. A figure that
differs from the look before was measured since then, and counts from there: so one that was measured while a queue was
being drained is not taken for one of afterwards (`broker.law.capacity.inbound_delay`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.measure.tcp_diag import TcpConnection
from broker.model.leases import HoldOutcome
from broker.model.values import BrokerThere, SenderSample

if TYPE_CHECKING:
    from broker.peers.peer_status import PeerStatus

FORGET_S = 5.0
"""An address without connections for so long sends nothing; its counter begins anew when it comes again."""
LASTS_S = 0.5
"""From the first connection of an address to a later look at one: then a connection to its broker is worth a handshake.
A client that asks for one thing and goes is not dialled."""
SENDERS_MAX = 256
CONNECTIONS_MAX = 8192
"""Addresses and connections that are remembered: those that were seen last."""

SEGMENTS_MIN = 4
"""So many since the last reading, and TCP's round trip of a connection is new."""
WRAPS = 2**32
"""tcpi_segs_in counts in 32 bits (linux/tcp.h)."""

MEASURE_S = 0.1
"""A round trip is new with every message that goes: at least five a second while storage is held, one a second else.
How old one may be is known to this: a tick."""
_Endpoint = tuple[str, int]


@dataclass
class _Sender:
    since_s: float
    received_bytes: int = 0
    seen_s: float = 0.0
    receive_rtt_s: float | None = None


class SenderTable:
    """The senders of one host. For one thread; times come in."""

    def __init__(self) -> None:
        self._senders: dict[tuple[str, str], _Sender] = {}
        self._connections: dict[tuple[_Endpoint, _Endpoint], tuple[int, float]] = {}
        self._looked_s = float("-inf")
        self._whole = False
        self._counted: Sequence[tuple[TcpConnection, str]] = ()

    def count(self, connections: Sequence[tuple[TcpConnection, str]], *, whole: bool) -> None:
        """Take in a look at TCP connections, each with its class; twice the same does nothing.

        Args:
            connections: those of `other` have no sender, and are remembered: a class may change.
            whole: whether these are all that there are; of none, whether TCP was looked at.
        """
        if not connections:  # then whoever is seen next has come since
            self._whole = whole
            return
        if connections is self._counted:
            return
        self._counted = connections
        at_s = max(connection.at_s for connection, _ in connections)
        if at_s == self._looked_s:
            return
        self._looked_s = at_s
        for sender in self._senders.values():
            sender.receive_rtt_s = None
        for connection, traffic_class in connections:
            ends = (connection.local, connection.remote)
            came = connection.arrived_segments
            known, _ = self._connections.pop(ends, (0 if self._whole else came, at_s))
            self._connections[ends] = (came, at_s)  # in the order of their last look
            if traffic_class == "other":
                continue
            sender = self._senders.setdefault((connection.remote[0], traffic_class), _Sender(at_s))
            grown = (came - known) % WRAPS
            # One that went back without having wrapped is the counter of another connection between the same ends.
            sender.received_bytes += (grown if grown < WRAPS // 2 else came) * connection.segment_bytes
            if grown >= SEGMENTS_MIN and connection.receive_rtt_s is not None:
                sender.receive_rtt_s = min(connection.receive_rtt_s, sender.receive_rtt_s or connection.receive_rtt_s)
            sender.seen_s = at_s
        self._whole = whole
        self._forget(at_s)

    def _forget(self, at_s: float) -> None:
        while self._connections:
            oldest = next(iter(self._connections))
            if len(self._connections) <= CONNECTIONS_MAX and at_s - self._connections[oldest][1] <= FORGET_S:
                break
            del self._connections[oldest]
        for key in [key for key, sender in self._senders.items() if at_s - sender.seen_s > FORGET_S]:
            del self._senders[key]
        if len(self._senders) > SENDERS_MAX:
            latest = sorted(self._senders.items(), key=lambda entry: -entry[1].seen_s)[:SENDERS_MAX]
            self._senders = dict(latest)

    def samples(
        self, *, interface_of: Callable[[str], str | None], broker_of: Callable[[str], BrokerThere],
        trip_of: Callable[[str], PeerRtt | None], held: Mapping[str, HoldOutcome], now_s: float,
    ) -> Mapping[str, tuple[SenderSample, ...]]:  # fmt: skip
        """What the decision shall know of each interface's senders.

        Args:
            interface_of: the shaped interface towards an address; what comes back from there comes in by it.
            broker_of: whether a broker answers at an address.
            trip_of: the least and the last round trip to its broker; TCP's own may include the sender's queue.
            held: that broker's answer to our hold.
        """
        found: dict[str, list[SenderSample]] = {}
        age_s = max(0.0, now_s - self._looked_s)
        for (address, traffic_class), sender in self._senders.items():
            interface = interface_of(address)
            if interface is None:
                continue
            verdict, trip = held.get(address), trip_of(address)
            found.setdefault(interface, []).append(
                SenderSample(
                    address=address,
                    traffic_class=traffic_class,
                    received_bytes=sender.received_bytes,
                    age_s=age_s,
                    rtt_s=trip.least_s if trip is not None else None,
                    broker=broker_of(address),
                    granted_bits_per_s=verdict.rate_bits_per_s if verdict is not None and verdict.granted else None,
                    refused=verdict is not None and not verdict.granted,
                    broker_rtt_s=trip.last_s if trip is not None else None,
                    receive_rtt_s=sender.receive_rtt_s,
                    broker_rtt_age_s=max(0.0, now_s - trip.since_s) if trip is not None else 0.0,
                )
            )
        return {interface: tuple(samples) for interface, samples in found.items()}

    def addresses(self, traffic_class: str) -> tuple[str, ...]:
        """The addresses that have had connections of a class with us for `LASTS_S`, in either direction."""
        return tuple(
            sorted(
                address
                for (address, name), sender in self._senders.items()
                if name == traffic_class and sender.seen_s - sender.since_s >= LASTS_S
            )
        )


class PeerRtt(NamedTuple):
    """The least and the last round trip to a broker, and the earliest time at which the last may have been measured."""

    least_s: float
    last_s: float
    since_s: float


class PeerRtts:
    """By address, as of the last look. For one thread; times come in."""

    def __init__(self) -> None:
        self._trips: dict[str, PeerRtt] = {}
        self._looked_s = float("-inf")

    def is_due(self, *, now_s: float) -> bool:
        """Whether the last look is long enough ago."""
        return now_s - self._looked_s >= MEASURE_S

    def look(self, peers: Iterable[PeerStatus], *, now_s: float) -> None:
        """Add the present figures of the connections to all brokers."""
        before_s, self._looked_s = self._looked_s, now_s
        known, self._trips = self._trips, {}
        for peer in peers:
            if peer.rtt_s_min is None or peer.rtt_latest_s is None:
                continue
            before = known.get(peer.address)
            if before is None:  # the first reading is only a reference for later ones
                before = PeerRtt(peer.rtt_s_min, peer.rtt_latest_s, now_s)
            since_s = before.since_s if before.last_s == peer.rtt_latest_s else before_s
            self._trips[peer.address] = PeerRtt(peer.rtt_s_min, peer.rtt_latest_s, since_s)

    def get(self, address: str) -> PeerRtt | None:
        """Of one broker; None where there is no connection to one."""
        return self._trips.get(address)
