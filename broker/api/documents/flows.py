"""The flows of the status document, and the programs that send and receive by them. Pure.

Why a connection gets what it gets:
what holds where it goes    towards an address at which another broker has storage held back
what holds for its class    all others: the kernel gives them turns in it
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from msgspec.structs import asdict

from broker.api.documents import programs
from broker.api.documents.class_averages import AveragesSnapshot
from broker.api.documents.programs import Program
from broker.api.documents.schema import ConnectionFlow, Flow, ProbeFlow, SocketFlow, TcpFlow, UdpFlow
from broker.api.documents.snapshot import Snapshot
from broker.measure.socket_owners import NOBODY, SocketOwner
from broker.measure.tcp_diag import TcpConnection, UdpSocket
from broker.model.reasons import Reason
from broker.model.values import Allocation, FlowSample, Measurements


def flow_list(snapshot: Snapshot) -> list[Flow]:
    """Passed sockets, the connections that sessions report, and the TCP connections and UDP sockets that are shown."""
    flows: list[Flow] = [SocketFlow(**asdict(passed)) for passed in snapshot.passed]
    sessions = {session.name: session for session in snapshot.sessions}
    why = _Reasons(snapshot.decision.allocation, snapshot.measurements)
    for interface in snapshot.measurements.interfaces:
        for sample in interface.flows:
            if sample.source == "report":
                session = sessions.get(sample.key.partition("/")[0])
                flows.append(
                    ConnectionFlow(
                        **asdict(sample),
                        interface=interface.name,
                        reason=why.of_sample(sample),
                        pid=None if session is None else session.pid,
                        command=None if session is None else session.command,
                        **_speeds(snapshot.figures, sample.key),
                    )
                )
            elif sample.source == "probe":
                flows.append(ProbeFlow(**asdict(sample), interface=interface.name, reason=why.of_sample(sample)))
    for connection, traffic_class in snapshot.tcp:
        owner = snapshot.origins.get(connection.inode, NOBODY)
        flows.append(_tcp_flow(connection, traffic_class, owner, snapshot.figures, why))
    registered = {passed.inode for passed in snapshot.passed}
    for sock, traffic_class, waits in snapshot.udp:
        if sock.inode not in registered:
            owner = snapshot.origins.get(sock.inode, NOBODY)
            flows.append(_udp_flow(sock, traffic_class, owner, waits=waits))
    return flows


class _Reasons:
    """Why each connection of one tick gets what it gets."""

    def __init__(self, allocation: Allocation, measurements: Measurements) -> None:
        ways_out = allocation.interfaces
        self._interfaces = {flow.key: entry.name for entry in measurements.interfaces for flow in entry.flows}
        self._only = ways_out[0].name if len(ways_out) == 1 else None
        self._held = {
            (entry.name, one.traffic_class, one.address): one.reason for entry in ways_out for one in entry.destinations
        }
        self._classes = {(entry.name, one.name): one.reason for entry in ways_out for one in entry.classes}

    def of_sample(self, sample: FlowSample) -> Reason | None:
        """As `of`."""
        return self.of(sample.key, traffic_class=sample.traffic_class, peer=sample.peer)

    def of(self, flow: str, *, traffic_class: str, peer: str) -> Reason | None:
        """Its reason; None for one that may go through any of several interfaces."""
        interface = self._interfaces.get(flow, self._only)
        if interface is None:
            return None
        return self._held.get((interface, traffic_class, peer)) or self._classes.get((interface, traffic_class))


def _speeds(figures: AveragesSnapshot, key: Hashable) -> dict[str, Any]:
    """What a connection sends and receives now; None where it was counted once alone, or not at all."""
    sent, received = figures.sent.get(key), figures.received.get(key)
    return {
        "throughput_bits_per_s": None if sent is None else sent.bits_per_s,
        "received_bits_per_s": None if received is None else received.bits_per_s,
    }


def _tcp_flow(
    connection: TcpConnection, traffic_class: str, owner: SocketOwner, figures: AveragesSnapshot, why: _Reasons
) -> TcpFlow:
    peer = connection.remote[0]
    name = f"tcp/{connection.local[1]}/{peer}:{connection.remote[1]}"
    return TcpFlow(
        flow=name,
        traffic_class=traffic_class,
        local=_endpoint(connection.local),
        peer=peer,
        uid=connection.uid,
        pid=owner.pid,
        command=owner.command,
        cgroup=owner.cgroup,
        rtt_s=connection.rtt_s,
        rtt_s_min=connection.rtt_s_min,
        delivered_bytes=connection.acked_bytes,
        received_bytes=connection.received_bytes,
        sent_packets=connection.sent_segments,
        lost_packets=connection.retransmitted_segments,
        delivery_rate_bits_per_s=connection.delivery_rate_bits_per_s,
        application_limited=connection.application_limited,
        **_speeds(figures, connection.question),
        reason=why.of(name, traffic_class=traffic_class, peer=peer),
    )


def _udp_flow(sock: UdpSocket, traffic_class: str, owner: SocketOwner, *, waits: bool) -> UdpFlow:
    return UdpFlow(
        flow=f"udp/{sock.local[1]}",
        traffic_class=traffic_class,
        local=_endpoint(sock.local),
        peer=sock.remote[0] if sock.remote[1] else None,
        uid=sock.uid,
        pid=owner.pid,
        command=owner.command,
        cgroup=owner.cgroup,
        waiting_bytes=sock.waiting_bytes,
        waited_lately=waits,
    )


def program_list(snapshot: Snapshot, flows: Collection[Flow]) -> list[Program]:
    """Who sends and receives, by what is known of the flows."""
    counted, uncounted = [], []
    commands = {one.name: one.command for one in snapshot.sessions}
    reporting = {flow.key.partition("/")[0] for flow in flows if isinstance(flow, ConnectionFlow)}
    for flow in flows:
        match flow:
            case SocketFlow() if flow.protocol == "udp" and flow.session not in reporting:
                uncounted.append((_registered(flow, commands.get(flow.session)), False))
            case TcpFlow():
                counted.append(_row(flow, protocol="tcp"))
            case ConnectionFlow() if flow.pid is not None:
                counted.append(_row(flow, protocol="udp"))
            case UdpFlow() if flow.waited_lately:  # idle ones are not blamed for what may be forwarded, or short TCP
                uncounted.append((_row(flow, protocol="udp"), True))
    sent: dict[str, int] = {}
    for interface in snapshot.decision.allocation.interfaces:
        for entry in interface.classes:
            sent[entry.name] = sent.get(entry.name, 0) + (entry.throughput_bits_per_s or 0)
    return programs.busiest(counted, uncounted, class_bits_per_s=sent)


def _registered(flow: SocketFlow, command: str | None) -> Program:
    """A socket of a program that reports no connections."""
    return Program(
        pid=flow.pid, command=command, uid=flow.uid, traffic_class=flow.traffic_class, protocol=flow.protocol,
        peer=None, port=_port(flow.local), connections=1, throughput_bits_per_s=None, received_bits_per_s=None,
        rate_source="unknown",
    )  # fmt: skip


def _row(flow: TcpFlow | ConnectionFlow | UdpFlow, *, protocol: str) -> Program:
    return Program(
        pid=flow.pid,
        command=flow.command,
        uid=flow.uid,
        traffic_class=flow.traffic_class,
        protocol=protocol,
        peer=flow.peer,
        port=_port(flow.local) if isinstance(flow, UdpFlow) and flow.peer is None else None,
        connections=1,
        throughput_bits_per_s=flow.throughput_bits_per_s,
        received_bits_per_s=flow.received_bits_per_s,
        rate_source="unknown" if isinstance(flow, UdpFlow) else "measured",
    )


def _port(local: str) -> int | None:
    port = local.rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def _endpoint(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
