"""The flows of the status document, and the programs that send and receive by them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import msgspec

from broker.api import programs
from broker.api.class_averages import AveragesSnapshot
from broker.api.flow_reasons import FlowReasons
from broker.api.programs import Program
from broker.api.snapshot import Snapshot
from broker.measure.socket_owners import NOBODY, SocketOwner
from broker.measure.tcp_diag import TcpConnection, UdpSocket


def flow_list(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Passed sockets, the connections that sessions report, and the TCP connections and UDP sockets that are shown."""
    flows: list[dict[str, Any]] = []
    figures, sessions = snapshot.figures, {session.name: session for session in snapshot.sessions}
    why = FlowReasons(snapshot.decision.allocation, snapshot.measurements)
    for passed in snapshot.passed:
        shown = msgspec.to_builtins(passed)
        flows.append({"flow": shown.pop("name"), "kind": "socket", "class": shown.pop("traffic_class"), **shown})
    for interface in snapshot.measurements.interfaces:
        for sample in interface.flows:
            if sample.source in ("report", "probe"):
                shown = msgspec.to_builtins(sample)
                name, traffic_class = shown.pop("key"), shown.pop("traffic_class")
                flow = {
                    "flow": name,
                    "kind": "connection" if sample.source == "report" else "probe",
                    "class": traffic_class,
                    "interface": interface.name,
                    **shown,
                }
                session = sessions.get(name.partition("/")[0]) if sample.source == "report" else None
                if session is not None:
                    flow |= {"pid": session.pid, "command": session.command, **_speeds(figures, name)}
                flows.append({**flow, **why.of(name, traffic_class=traffic_class, peer=sample.peer)})
    for connection, traffic_class in snapshot.tcp:
        flow = _tcp_flow(connection, traffic_class, snapshot.origins.get(connection.inode, NOBODY))
        flow |= _speeds(figures, connection.question)
        flows.append({**flow, **why.of(flow["flow"], traffic_class=traffic_class, peer=connection.remote[0])})
    registered = {passed.inode for passed in snapshot.passed}
    for sock, traffic_class, waits in snapshot.udp:
        if sock.inode not in registered:
            origin = snapshot.origins.get(sock.inode, NOBODY)
            flows.append(_udp_flow(sock, traffic_class, origin, waits=waits))
    return flows


def _speeds(figures: AveragesSnapshot, key: Hashable) -> dict[str, int | None]:
    """What a connection sends and receives now; None where it was counted once alone, or not at all."""
    sent, received = figures.sent.get(key), figures.received.get(key)
    return {
        "throughput_bits_per_s": None if sent is None else sent.bits_per_s,
        "received_bits_per_s": None if received is None else received.bits_per_s,
    }


def _udp_flow(sock: UdpSocket, traffic_class: str, origin: SocketOwner, *, waits: bool) -> dict[str, Any]:
    """A socket of a program that did not register it. The kernel counts no bytes of it, so it has no rate."""
    return {
        "flow": f"udp/{sock.local[1]}",
        "kind": "udp",
        "class": traffic_class,
        "local": _endpoint(sock.local),
        "peer": sock.remote[0] if sock.remote[1] else None,
        "uid": sock.uid,
        "pid": origin.pid,
        "command": origin.command,
        "cgroup": origin.cgroup,
        "waiting_bytes": sock.waiting_bytes,
        "waited_lately": waits,
        "throughput_bits_per_s": None,
        "received_bits_per_s": None,
        "share_bits_per_s": None,
        "reason": None,
    }


def program_list(snapshot: Snapshot, flows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who sends and receives, by what is known of the flows."""
    counted, uncounted = [], []
    for flow in flows:
        if flow["kind"] in ("connection", "tcp") and "pid" in flow:
            counted.append(_row(flow, protocol="tcp" if flow["kind"] == "tcp" else "udp"))
        elif flow["kind"] == "udp":
            uncounted.append((_row(flow, protocol="udp"), bool(flow["waited_lately"])))
    sent: dict[str, int] = {}
    for interface in snapshot.decision.allocation.interfaces:
        for entry in interface.classes:
            sent[entry.name] = sent.get(entry.name, 0) + (entry.throughput_bits_per_s or 0)
    return [_program(row) for row in programs.busiest(counted, uncounted, class_bits_per_s=sent)]


def _row(flow: Mapping[str, Any], *, protocol: str) -> Program:
    alone = flow["peer"] is None
    return Program(
        pid=flow["pid"],
        command=flow["command"],
        uid=flow["uid"],
        traffic_class=flow["class"],
        protocol=protocol,
        peer=flow["peer"],
        port=int(flow["local"].rpartition(":")[2]) if alone else None,
        connections=1,
        throughput_bits_per_s=flow["throughput_bits_per_s"],
        received_bits_per_s=flow["received_bits_per_s"],
        rate_source="unknown" if flow["kind"] == "udp" else "measured",
    )


def _program(row: Program) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(row)
    shown["class"] = shown.pop("traffic_class")
    return shown


def _tcp_flow(connection: TcpConnection, traffic_class: str, origin: SocketOwner) -> dict[str, Any]:
    return {
        "flow": f"tcp/{connection.local[1]}/{connection.remote[0]}:{connection.remote[1]}",
        "kind": "tcp",
        "class": traffic_class,
        "local": _endpoint(connection.local),
        "peer": connection.remote[0],
        "uid": connection.uid,
        "pid": origin.pid,
        "command": origin.command,
        "cgroup": origin.cgroup,
        "rtt_s": connection.rtt_s,
        "rtt_s_min": connection.rtt_s_min,
        "delivered_bytes": connection.acked_bytes,
        "received_bytes": connection.received_bytes,
        "sent_packets": connection.sent_segments,
        "lost_packets": connection.retransmitted_segments,
        "delivery_rate_bits_per_s": connection.delivery_rate_bits_per_s,
        "application_limited": connection.application_limited,
    }


def _endpoint(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
