"""What is known of flows: sockets that were passed, connections that sessions report, TCP connections that we see.

Bounded in every direction, and cheap: a thousand connections must fit into 3 % of a core. What goes to the decision is
therefore at most `SAMPLES_MAX` an interface: first what our kernel measured, storage and compute before the rest, the
busiest first; then what programs report, of each user as many.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import TcpConnection
from broker.model.connection_report import ConnectionReport, Endpoint
from broker.model.fair_share import in_turns
from broker.model.values import NO_JOB, FlowSample, JobKey
from broker.policy.types import CLASS_NAMES

SAMPLES_MAX = 128
"""Connections of one interface in a decision: delay and loss of 128 show as much as those of 1,000."""
TCP_SAMPLES_MAX = 32
"""Of these, TCP connections: the decision follows as many."""
SAMPLES_PER_SESSION_MIN = 2
CONNECTIONS_PER_SESSION_MAX = 1024
OTHERS_SHOWN_MAX = 32
"""Connections of `other` that are shown: those that have carried most since the last look, or have most that waits."""
FORGET_S = 10.0
"""A connection without a report for so long is over; the decision treats it as stale long before."""


class PassedSocket(Struct, frozen=True):
    """A socket that a session passed and that we marked. `inode` finds it again in sock_diag."""

    name: str
    session: str
    job: str
    traffic_class: str
    role: str
    protocol: str
    local: str
    pid: int
    uid: int
    inode: int


class _Reported(Struct, frozen=True):
    connection: ConnectionReport
    at_s: float


class FlowTable:
    """All flows of one daemon. Times come in as monotonic seconds."""

    def __init__(self) -> None:
        self.passed: dict[str, PassedSocket] = {}
        self._registrations: dict[tuple[str, int], list[str]] = {}
        self._classes: dict[str, set[str]] = {}
        self._whose: dict[str, tuple[int, str]] = {}
        self._reported: dict[str, dict[Endpoint, _Reported]] = {}
        self._tcp: tuple[tuple[TcpConnection, str], ...] = ()
        self._sampled: dict[str, list[tuple[FlowSample, float]]] | None = None
        self.tcp_count = 0
        self.tcp_whole = False
        """Whether the last look held all connections; False before the first."""
        self.tcp_shown: tuple[tuple[TcpConnection, str], ...] = ()
        self._carried: dict[int, int] = {}
        self._numbers = 0

    def number(self) -> str:
        """The next flow's name."""
        self._numbers += 1
        return f"f-{self._numbers}"

    def add(self, flow: PassedSocket, *, registration: int) -> None:
        """Enter a socket that was passed and marked, with the number of the message that it came with."""
        self.passed[flow.name] = flow
        self._registrations.setdefault((flow.session, registration), []).append(flow.name)
        self._classes.setdefault(flow.session, set()).add(flow.traffic_class)
        self._whose[flow.session] = flow.uid, flow.job

    def remove(self, session: str, *, registration: int) -> None:
        """Take the sockets of one message out; harmless where there are none."""
        for name in self._registrations.pop((session, registration), ()):
            self.passed.pop(name, None)

    def job_of(self, session: str) -> JobKey:
        """The job of a session that has passed sockets; `NO_JOB` where it named none."""
        whose = self._whose.get(session, NO_JOB)
        return whose if whose[1] else NO_JOB

    def slots_by_inode(self, slots: Mapping[JobKey, int]) -> dict[int, int]:
        """The slot of each socket of compute that was passed for a job with a slot; of two sessions, the later's."""
        return {
            flow.inode: slots[flow.uid, flow.job]
            for flow in self.passed.values()
            if flow.traffic_class == "compute" and (flow.uid, flow.job) in slots
        }

    def _user_of(self, session: str) -> int | None:
        return self._whose.get(session, NO_JOB)[0]

    def classes_of(self, session: str) -> tuple[str, ...]:
        """The classes of the sockets that a session passed, in the order of `CLASS_NAMES`."""
        found = self._classes.get(session, ())
        return tuple(name for name in CLASS_NAMES if name in found)

    def report(
        self, session: str, connections: Iterable[ConnectionReport], *, now_s: float
    ) -> list[tuple[ConnectionReport, int]]:  # fmt: skip
        """Take what a session measures; of too many connections the oldest are dropped.

        Returns:
            Each connection with the bytes that it delivered since its last report.
        """
        mine = self._reported.setdefault(session, {})
        deliveries = []
        for connection in connections:
            before = mine.pop(connection.peer, None)
            mine[connection.peer] = _Reported(connection, now_s)
            deliveries.append((connection, _delivered(before, connection)))
        while mine:  # in the order of their last report
            oldest = next(iter(mine))
            if len(mine) <= CONNECTIONS_PER_SESSION_MAX and now_s - mine[oldest].at_s <= FORGET_S:
                break
            del mine[oldest]
        return deliveries

    def see_tcp(self, connections: Iterable[TcpConnection], *, matching: PortClasses) -> None:
        """Take a look at the TCP connections of the namespace; it replaces the former one."""
        self._tcp = tuple((connection, matching.class_of(connection)) for connection in connections)
        self._sampled = None
        self.tcp_whole = len(self._tcp) >= self.tcp_count
        before = self._carried
        self._carried = {one.inode: one.acked_bytes + one.received_bytes for one, _ in self._tcp}
        others = heapq.nlargest(
            OTHERS_SHOWN_MAX,
            (entry for entry in self._tcp if entry[1] == "other"),
            key=lambda entry: (self._carried[entry[0].inode] - before.get(entry[0].inode, 0), entry[0].waiting_bytes),
        )
        self.tcp_shown = (*(entry for entry in self._tcp if entry[1] != "other"), *others)

    def count_tcp(self, connections: int) -> None:
        """How many there are in all: of very many a look holds those alone that matter."""
        self.tcp_count = connections

    def forget(self, session: str) -> None:
        """Drop everything of a session that is gone."""
        self._reported.pop(session, None)
        self._classes.pop(session, None)
        self._whose.pop(session, None)
        self.passed = {name: flow for name, flow in self.passed.items() if flow.session != session}
        self._registrations = {key: names for key, names in self._registrations.items() if key[0] != session}

    def tcp_connections(self) -> tuple[tuple[TcpConnection, str], ...]:
        """The last look, with the class of each."""
        return self._tcp

    def samples(
        self, *, interface_of: Callable[[str], str | None], now_s: float
    ) -> Mapping[str, tuple[FlowSample, ...]]:
        """What the decision shall see of each shaped interface, with ages as of now."""
        if self._sampled is None:
            self._sampled = self._sample_tcp(interface_of)
        measured = {
            interface: [
                replace(sample, age_s=max(0.0, now_s - at_s)) for sample, at_s in sampled if now_s - at_s <= FORGET_S
            ]
            for interface, sampled in self._sampled.items()
        }
        last = self._last(lambda entry: now_s - entry.at_s <= FORGET_S)
        reported = self._by_interface(last, interface_of=interface_of, now_s=now_s)
        return {
            interface: (*measured.get(interface, ()), *reported.get(interface, ()))[:SAMPLES_MAX]
            for interface in {**measured, **reported}
        }

    def _by_interface(
        self,
        entries: Iterable[tuple[str, _Reported]],
        *,
        interface_of: Callable[[str], str | None],
        now_s: float,
    ) -> dict[str, tuple[FlowSample, ...]]:
        """As samples; of too many those that come first of each user, in turns."""
        found: dict[str, list[tuple[str, _Reported]]] = {}
        for session, entry in entries:
            interface = interface_of(entry.connection.peer.address)
            if interface is not None:
                found.setdefault(interface, []).append((session, entry))
        for interface, mine in found.items():
            if len(mine) > SAMPLES_MAX:
                found[interface] = in_turns(mine, of=lambda one: self._user_of(one[0]))[:SAMPLES_MAX]
        return {
            interface: tuple(
                _of_report(session, *self._whose.get(session, NO_JOB), entry, now_s) for session, entry in mine
            )
            for interface, mine in found.items()
        }

    def _last(self, wanted: Callable[[_Reported], bool]) -> Iterable[tuple[str, _Reported]]:
        """The freshest reports of each session, as long as they are wanted: of each user as many, and of each of his
        sessions, so that each has some."""
        sessions = collections.Counter(map(self._user_of, self._reported))
        for session, connections in self._reported.items():
            places = SAMPLES_MAX // (len(sessions) * sessions[self._user_of(session)])
            each = max(SAMPLES_PER_SESSION_MIN, places)
            for entry in itertools.takewhile(wanted, itertools.islice(reversed(connections.values()), each)):
                yield session, entry

    def _sample_tcp(self, interface_of: Callable[[str], str | None]) -> dict[str, list[tuple[FlowSample, float]]]:
        """The connections of the last look that the decision shall see, each with the time of the look."""
        found: dict[str, list[tuple[FlowSample, float]]] = {}
        interfaces: dict[str, str | None] = {}
        for connection, traffic_class in self._busiest():
            address = connection.remote[0]
            if address not in interfaces:  # a thousand connections lead to few hosts
                interfaces[address] = interface_of(address)
            interface = interfaces[address]
            if interface is not None and len(found.setdefault(interface, [])) < TCP_SAMPLES_MAX:
                found[interface].append((_of_tcp(connection, traffic_class), connection.at_s))
        return found

    def _busiest(self) -> list[tuple[TcpConnection, str]]:
        few = len(self._tcp) <= TCP_SAMPLES_MAX
        return list(self._tcp) if few else sorted(self._tcp, key=lambda entry: importance(*entry))


def importance(connection: TcpConnection, traffic_class: str) -> tuple[bool, bool, int]:
    """Sorting key of connections, the most important first: in a class, sending now, and then by what they have sent,
    so that the first stay the same for a while."""
    return (traffic_class == "other", connection.waiting_bytes == 0, -connection.acked_bytes)


def _delivered(before: _Reported | None, connection: ConnectionReport) -> int:
    """What a connection delivered since its last report; 0 without one, and where it counts anew."""
    delivered, earlier = connection.delivered_bytes, before.connection.delivered_bytes if before is not None else None
    return max(0, delivered - earlier) if delivered is not None and earlier is not None else 0


def _of_report(session: str, uid: int | None, job: str, entry: _Reported, now_s: float) -> FlowSample:
    connection = entry.connection
    return FlowSample(
        key=f"{session}/{connection.peer}",
        peer=connection.peer.address,
        traffic_class=connection.traffic_class,
        source="report",
        age_s=now_s - entry.at_s,
        rtt_s=connection.rtt_s,
        rtt_latest_s=connection.rtt_latest_s,
        rtt_s_min=connection.rtt_s_min,
        one_way_s=connection.one_way_s,
        one_way_age_s=connection.one_way_age_s,
        inbound_s=connection.inbound_s,
        inbound_age_s=connection.inbound_age_s,
        received_bytes=connection.received_bytes,
        delivered_bytes=connection.delivered_bytes,
        sent_packets=connection.sent_packets,
        lost_packets=connection.lost_packets,
        delivery_rate_bits_per_s=connection.delivery_rate_bits_per_s,
        application_limited=connection.application_limited,
        job=job,
        uid=uid,
    )


def _of_tcp(connection: TcpConnection, traffic_class: str) -> FlowSample:
    return FlowSample(
        key=f"tcp/{connection.local[1]}/{connection.remote[0]}:{connection.remote[1]}",
        peer=connection.remote[0],
        traffic_class=traffic_class,
        source="tcp-info",
        age_s=0.0,
        rtt_s=connection.rtt_s,
        rtt_s_min=connection.rtt_s_min,
        delivered_bytes=connection.acked_bytes,
        sent_packets=connection.sent_segments,
        lost_packets=connection.retransmitted_segments,
        delivery_rate_bits_per_s=connection.delivery_rate_bits_per_s,
        application_limited=connection.application_limited,
    )
