"""Two ends for tests of the engine in a lab: `echo` sends every control message back, `probe` measures.

Started as a program in a host of the lab. Identities come from files that the test wrote; results go out as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transport.engine import create_engine
from transport.engine.base import (
    ConnectionStatistics,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    Priority,
    Received,
    SendDone,
    UnexpectedMessage,
)
from transport.identity import load_identity
from transport.wire.header import Header, Kind, MatchKey

BULK_BYTES = 2**30
CONTROL_BYTES = 1000
PORTS = {False: 4800, True: 4801}


class Peer:
    """An engine with a compute and a bulk endpoint."""

    def __init__(self, name: str, *, engine: str, folder: Path, address: str) -> None:
        self.events: list[Event] = []
        self.condition = threading.Condition()
        identity = load_identity(
            ca=folder / "ca" / "ca.crt", certificate=folder / f"{name}.crt", key=folder / f"{name}.key"
        )
        self.engine: Engine = create_engine(engine, EngineSettings(), self._on_events)
        self.endpoints = {}
        for bulk, port in PORTS.items():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            self.endpoints[bulk] = self.engine.add_endpoint(
                sock, credentials=identity.credentials, trust=identity.trust, hello={2: name}, bulk=bulk
            )

    def _on_events(self, events: Any) -> None:
        with self.condition:
            self.events.extend(events)
            self.condition.notify_all()

    def statistics(self, connection: int) -> ConnectionStatistics:
        found = self.engine.statistics()
        if connection not in found:
            raise RuntimeError(f"connection {connection} is gone: {self.events}")
        return found[connection]

    def take(self, match: Callable[[Event], bool], timeout_s: float = 30) -> Any:
        end = time.monotonic() + timeout_s
        with self.condition:
            while True:
                for event in self.events:
                    if match(event):
                        self.events.remove(event)
                        return event
                if time.monotonic() > end:
                    raise TimeoutError(str(self.events))
                self.condition.wait(end - time.monotonic())


def message(tag: int, length: int, kind: Kind = Kind.CONTROL) -> Header:
    return Header(kind=kind, tag=tag, length=length)


def key(tag: int, kind: Kind = Kind.CONTROL) -> MatchKey:
    return MatchKey(kind=kind, tag=tag)


def echo(peer: Peer, other: str) -> None:
    """Send control messages back as they come, take one bulk message; for ever."""
    peer.engine.post(other, key(1, Kind.BULK), memoryview(bytearray(BULK_BYTES)))
    number = 0
    up = peer.take(lambda event: isinstance(event, ConnectionUp) and event.endpoint == peer.endpoints[False], 60)
    while True:
        peer.take(lambda event: isinstance(event, UnexpectedMessage), 120)
        operation = peer.engine.post(other, key(number), None)
        payload = peer.take(lambda event, wanted=operation: isinstance(event, Received) and event.operation == wanted)
        peer.engine.send(up.connection, message(number, CONTROL_BYTES), payload.payload, priority=Priority.CONTROL)
        number += 1


def probe(peer: Peer, other: str, address: str, seconds: float) -> dict[str, Any]:
    """Latency of control messages there and back, idle and while bulk flows, and what bulk got."""
    connections = {}
    for bulk, port in PORTS.items():
        attempt = peer.engine.connect(peer.endpoints[bulk], (address, port), expected_peer=other)
        up = peer.take(lambda event, wanted=attempt: isinstance(event, ConnectionUp) and event.attempt == wanted)
        connections[bulk] = up.connection
    counter = iter(range(10**6))

    def one() -> float:
        number = next(counter)
        operation = peer.engine.post(other, key(number), None)
        begun = time.perf_counter()
        payload = memoryview(bytes(CONTROL_BYTES))
        peer.engine.send(connections[False], message(number, CONTROL_BYTES), payload, priority=Priority.CONTROL)
        peer.take(lambda event: isinstance(event, Received) and event.operation == operation)
        taken = time.perf_counter() - begun
        peer.take(lambda event: isinstance(event, SendDone))
        return taken

    def several(duration_s: float) -> list[float]:
        samples, end = [], time.monotonic() + duration_s
        while time.monotonic() < end:
            samples.append(one())
            time.sleep(0.02)
        return samples

    several(0.5)
    idle = several(seconds / 2)
    bulk_payload = memoryview(bytearray(BULK_BYTES))
    peer.engine.send(connections[True], message(1, BULK_BYTES, Kind.BULK), bulk_payload, priority=Priority.BULK)
    time.sleep(1.0)
    cpu_s = resource.getrusage(resource.RUSAGE_SELF)
    before, begun = peer.statistics(connections[True]), time.monotonic()
    loaded = several(seconds)
    after, taken_s = peer.statistics(connections[True]), time.monotonic() - begun
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "idle_s": {"median": statistics.median(idle), "p95": statistics.quantiles(idle, n=20)[-1], "n": len(idle)},
        "loaded_s": {
            "median": statistics.median(loaded),
            "p95": statistics.quantiles(loaded, n=20)[-1],
            "n": len(loaded),
        },
        "bulk_bits_per_s": (after.delivered_bytes - before.delivered_bytes) * 8 / taken_s,
        "bulk_lost_packets": after.lost_packets,
        "bulk_window_bytes": after.congestion_window_bytes,
        "bulk_rtt_s": after.rtt_s,
        "bulk_rtt_s_min": after.rtt_s_min,
        "cpu_s_per_s": (spent.ru_utime + spent.ru_stime - cpu_s.ru_utime - cpu_s.ru_stime) / taken_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("echo", "probe"))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--other", required=True)
    parser.add_argument("--remote", default="")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    peer = Peer(options.name, engine=options.engine, folder=options.folder, address=options.address)
    print("ready", flush=True)
    if options.role == "echo":
        echo(peer, options.other)
    else:
        json.dump(probe(peer, options.other, options.remote, options.seconds), sys.stdout)
    peer.engine.close()


if __name__ == "__main__":
    main()
