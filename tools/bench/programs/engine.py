"""A side of a benchmark that runs one of the transport's engines: flows, round trips, idle connections."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.bench.programs.conversation import Begun, Order, cpu_s, resident_bytes, serve
from tools.bench.programs.peer import WAIT_S_MAX, Outcome, Peer, end_key, flow_key
from tools.bench.programs.samples import Samples
from transport.engine.base import OperationFailed, Priority, Received
from transport.wire.header import Kind, MatchKey

CONNECTIONS_PER_ENDPOINT, ENDPOINTS_PER_NAME = 4, 50
"""What engines allow between two ranks; and 200 connections under one name, of the 256 allowed."""
DIALS_AT_ONCE = 16
"""Handshakes under way while many connections are made: enough to keep both sides busy."""


class EngineSide:
    """The handlers of this program's orders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.peer = Peer(
            name=options.name,
            other=options.other,
            address=options.address,
            folder=options.folder,
            engine=options.engine,
            congestion=options.congestion,
            datagram_bytes=options.datagram_bytes,
        )
        self.connections: dict[bool, int] = {}
        self.many: list[int] = []

    def ports(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Where to dial."""
        ports = self.peer.ports
        return {"compute": ports[False], "bulk": ports[True], "engine": self.peer.engine.name}

    def connect(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Dial all endpoints of the other side."""
        for bulk in (False, True):
            attempt = self.peer.dial(order["address"], order["bulk" if bulk else "compute"], bulk=bulk)
            self.connections[bulk] = self.peer.connection(bulk=bulk, attempt=attempt)
        return {}

    def accept(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Wait until all endpoints were dialled."""
        begun()
        self.connections = {bulk: self.peer.connection(bulk=bulk) for bulk in (False, True)}
        return {}

    def send(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Keep `outstanding` messages under way for `seconds` or `bytes_max`, then say that it was all."""
        peer, flow, connection = self.peer, int(order["flow"]), self.connections[False]
        payload = memoryview(bytearray(b"\x5a" * order["message_bytes"]))
        time.sleep(order["lead_s"])
        samples = Samples()
        end_s, under_way, step, failure = time.monotonic() + order["seconds"], 0, 0, ""

        def ended(outcome: Outcome) -> None:
            nonlocal under_way, failure
            under_way -= 1
            if isinstance(outcome, OperationFailed):
                failure = failure or str(outcome.error)
            else:
                samples.add(len(payload))

        begun()
        while True:
            more = time.monotonic() < end_s and step * len(payload) < order["bytes_max"] and not failure
            if more and under_way < order["outstanding"]:
                under_way += 1
                operation = peer.send(connection, flow_key(flow, step), payload, priority=Priority.GRADIENT)
                step += 1
                peer.watch(operation, ended)
            elif under_way:
                if not more:
                    samples.stop()
                if not peer.pump_within(WAIT_S_MAX):
                    raise RuntimeError(f"after {samples.total_bytes} bytes, {under_way} sends did not end")
            else:
                break
        if failure:
            raise RuntimeError(failure)
        found = samples.result()
        peer.outcome(peer.send(self.connections[False], end_key(flow), None, priority=Priority.CONTROL))
        return {**found, "statistics": self._statistics()}

    def receive(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Take a flow into as many buffers as may be under way; sleep first for `sleep_s`, posting nothing."""
        peer, flow = self.peer, int(order["flow"])
        buffers = [memoryview(bytearray(b"\x00" * order["message_bytes"])) for _ in range(order["outstanding"] + 1)]
        posted: dict[int, memoryview] = {}
        ended, failure, step = False, "", 0
        samples = Samples()

        def post(buffer: memoryview) -> None:
            nonlocal step
            operation = peer.engine.post(peer.other, flow_key(flow, step), buffer)
            step += 1
            posted[operation] = buffer
            peer.watch(operation, lambda outcome: taken(operation, outcome))

        def taken(operation: int, outcome: Outcome) -> None:
            nonlocal failure
            buffer = posted.pop(operation)
            if isinstance(outcome, Received):
                samples.add(len(outcome.payload))
                post(buffer)
            elif not ended:
                failure = failure or str(getattr(outcome, "error", outcome))

        def end(outcome: Outcome) -> None:
            nonlocal ended
            ended = True

        begun()
        time.sleep(order["sleep_s"])
        for buffer in buffers:
            post(buffer)
        peer.watch(peer.engine.post(peer.other, end_key(flow), None), end)
        while not ended and not failure:
            if not peer.pump_within(WAIT_S_MAX):
                raise RuntimeError(f"after {samples.total_bytes} bytes neither a message nor the end of the flow came")
        found = samples.result()
        ended = True
        for operation in tuple(posted):
            peer.engine.cancel(operation)
        while posted:
            if not peer.pump_within(WAIT_S_MAX):
                raise RuntimeError(f"{len(posted)} cancelled posts did not end")
        if failure:
            raise RuntimeError(failure)
        return found

    def ping(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Round trips of each size in turn for `seconds`; with `bulk_bytes`, while that much flows to the same peer."""
        peer, flow, connection = self.peer, int(order["flow"]), self.connections[False]
        bulk = _BulkSender(peer, self.connections[True], order) if order["bulk_bytes"] else None
        if bulk is not None:
            peer.pump_for(order["bulk_lead_s"])
        lost_before = self._lost()
        trips: dict[str, list[float]] = {str(size): [] for size in order["sizes"]}
        payloads = {size: memoryview(bytes(size)) for size in order["sizes"]}
        end_s, number = time.monotonic() + order["seconds"], 0
        while time.monotonic() < end_s:
            size = order["sizes"][number % len(order["sizes"])]
            key = MatchKey(kind=Kind.CONTROL, group=f"ping-{flow}", step=number)
            answer = peer.engine.post(peer.other, key, None)
            begin_s = time.perf_counter()
            sent = peer.send(connection, key, payloads[size], priority=Priority.CONTROL)
            peer.outcome(answer)
            trips[str(size)].append(time.perf_counter() - begin_s)
            peer.outcome(sent)
            number += 1
            peer.pump_for(order["pause_s"])
        flowing = bulk.end() if bulk is not None else None
        last = MatchKey(kind=Kind.CONTROL, group=f"ping-{flow}", step=number)
        peer.outcome(peer.send(connection, last, None, priority=Priority.CONTROL))
        return {"round_trips_s": trips, "bulk": flowing, "lost": self._lost() - lost_before}

    def echo(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Send back what comes, at the same priority, until an empty message."""
        peer, flow, connection = self.peer, int(order["flow"]), self.connections[False]
        number = 0
        bulk = _BulkReceiver(peer, order) if order["bulk_bytes"] else None
        operation = peer.engine.post(peer.other, MatchKey(kind=Kind.CONTROL, group=f"ping-{flow}", step=0), None)
        begun()
        while True:
            got = peer.outcome(operation)
            if not isinstance(got, Received) or not got.payload:
                break
            key = MatchKey(kind=Kind.CONTROL, group=f"ping-{flow}", step=number + 1)
            operation = peer.engine.post(peer.other, key, None)  # before the answer, so that the next finds it
            back = MatchKey(kind=Kind.CONTROL, group=f"ping-{flow}", step=number)
            peer.watch(peer.send(connection, back, got.payload, priority=Priority.CONTROL), lambda _: None)
            number += 1
        if bulk is not None:
            bulk.end()
        return {"answered": number}

    def open_many(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Serve `count` more sockets; gives their ports.

        An engine allows few connections between two ranks, and a limited number under one name: many connections
        need many of both.
        """
        name = order["name"]
        opened = [
            self.peer.add_endpoint(f"{name}-{number // ENDPOINTS_PER_NAME}", bulk=False, rank=number)
            for number in range(order["count"])
        ]
        self.many = [endpoint for endpoint, _ in opened]
        return {"ports": [port for _, port in opened]}

    def dial_many(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Make connections, some from each of `open_many`'s sockets, until there are `count` or the time is over."""
        peer, before_bytes, before_up = self.peer, resident_bytes(), len(self.peer.up)
        begin_s, begin_cpu_s = time.monotonic(), cpu_s()
        end_s, dialled = begin_s + order["seconds_max"], 0
        while (made := len(peer.up) - before_up) < order["count"] and time.monotonic() < end_s:
            if peer.down:
                raise RuntimeError(f"connection {made} failed: {peer.down[0].error}")
            if dialled < order["count"] and dialled - made < DIALS_AT_ONCE:
                number = dialled // CONNECTIONS_PER_ENDPOINT
                name = f"{peer.other}-{number // ENDPOINTS_PER_NAME}"
                peer.engine.connect(self.many[number], (order["address"], order["ports"][number]), expected_peer=name)
                dialled += 1
            else:
                peer.pump_for(0.05)
        return {
            "connections": len(peer.up) - before_up,
            "seconds": time.monotonic() - begin_s,
            "cpu_s": cpu_s() - begin_cpu_s,
            "before_bytes": before_bytes,
            "after_bytes": resident_bytes(),
        }

    def rest(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Do nothing for a while, and say what that costs."""
        begun()
        begin_cpu_s, before_bytes = cpu_s(), resident_bytes()
        end_s = time.monotonic() + order["seconds"]
        self.peer.pump_for(end_s - time.monotonic())
        return {"cpu_s": cpu_s() - begin_cpu_s, "bytes": before_bytes, "seconds": order["seconds"]}

    def read_statistics(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Look at the statistics of every connection `readings_per_s` times a second; the CPU time of the reader."""
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        connections = 0
        for number in range(round(order["seconds"] * order["readings_per_s"])):
            self.peer.pump_for(begin_s + number / order["readings_per_s"] - time.monotonic())
            connections = sum(one.sent_bytes > 0 for one in self.peer.engine.statistics().values())
        self.peer.pump_for(begin_s + order["seconds"] - time.monotonic())
        taken_s = time.monotonic() - begin_s
        return {"cpu_s": time.thread_time() - begin_cpu_s, "seconds": taken_s, "connections": connections}

    def _lost(self) -> int:
        """Packets lost so far of the connection that round trips go over."""
        return self.peer.engine.statistics()[self.connections[False]].lost_packets

    def _statistics(self) -> Mapping[str, Any]:
        found = self.peer.engine.statistics()[self.connections[False]]
        names = ("rtt_s", "rtt_s_min", "congestion_window_bytes", "lost_packets", "sent_packets", "sent_bytes")
        return {name: getattr(found, name) for name in names}


class _BulkSender:
    """Keeps two bulk messages under way on the bulk connection, whatever else the thread waits for."""

    def __init__(self, peer: Peer, connection: int, order: Order) -> None:
        self._peer, self._connection, self._flow = peer, connection, int(order["flow"])
        self._payload = memoryview(bytearray(b"\x5a" * order["bulk_message_bytes"]))
        self._left = order["bulk_bytes"] // len(self._payload)
        self._step, self._under_way, self._ending = 0, set[int](), False
        self._begin_s = time.monotonic()
        self._before_bytes = self._delivered_bytes()
        for _ in range(2):
            self._next()

    def end(self) -> dict[str, float]:
        """Withdraw what is left; gives what was delivered and in which time."""
        found = {
            "bytes": float(self._delivered_bytes() - self._before_bytes),
            "seconds": time.monotonic() - self._begin_s,
            "exhausted": float(not self._left and not self._under_way),
        }
        self._ending = True
        for operation in tuple(self._under_way):
            self._peer.engine.cancel(operation)
        while self._under_way:
            self._peer.pump(time.monotonic() + WAIT_S_MAX)
        return found

    def _next(self) -> None:
        if self._ending or not self._left:
            return
        self._left -= 1
        key = MatchKey(kind=Kind.BULK, group=f"bulk-{self._flow}", step=self._step)
        self._step += 1
        operation = self._peer.send(self._connection, key, self._payload, priority=Priority.BULK)
        self._under_way.add(operation)
        self._peer.watch(operation, lambda _: self._done(operation))

    def _done(self, operation: int) -> None:
        self._under_way.discard(operation)
        self._next()

    def _delivered_bytes(self) -> int:
        return self._peer.engine.statistics()[self._connection].delivered_bytes


class _BulkReceiver:
    """Posts for bulk messages as they come, until one fails because its sender withdrew it, or until the end."""

    def __init__(self, peer: Peer, order: Order) -> None:
        self._peer, self._flow, self._step = peer, int(order["flow"]), 0
        self._left = order["bulk_bytes"] // order["bulk_message_bytes"]
        self._posted = set[int]()
        for _ in range(3):
            self._post(memoryview(bytearray(order["bulk_message_bytes"])))

    def end(self) -> None:
        """Withdraw what is posted still."""
        self._left = 0
        for operation in tuple(self._posted):
            self._peer.engine.cancel(operation)
        while self._posted:
            self._peer.pump(time.monotonic() + WAIT_S_MAX)

    def _post(self, buffer: memoryview) -> None:
        if not self._left:
            return
        self._left -= 1
        key = MatchKey(kind=Kind.BULK, group=f"bulk-{self._flow}", step=self._step)
        self._step += 1
        operation = self._peer.engine.post(self._peer.other, key, buffer)
        self._posted.add(operation)

        def taken(outcome: Outcome) -> None:
            self._posted.discard(operation)
            if isinstance(outcome, Received):
                self._post(buffer)

        self._peer.watch(operation, taken)


def main() -> None:
    """`python -m tools.bench.programs.engine ...`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--congestion", required=True)
    parser.add_argument("--datagram-bytes", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--other", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    side = EngineSide(parser.parse_args())
    names = ["ports", "connect", "accept", "send", "receive", "ping", "echo", "dial_many", "open_many", "rest"]
    names.append("read_statistics")
    try:
        serve({name: getattr(side, name) for name in names})
    finally:
        side.peer.engine.close()


if __name__ == "__main__":
    main()
