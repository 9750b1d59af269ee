"""A side of a benchmark over kernel TCP, for round trips: one connection for pings, one for bulk."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from tools.bench.programs.conversation import Begun, Order, serve

CHUNK_BYTES = 256 * 1024


class TcpSide:
    """The handlers of this program's orders."""

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, 0))
        self._pings: socket.socket | None = None
        self._bulk: socket.socket | None = None

    def ports(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Where to connect."""
        return {"port": self._listener.getsockname()[1]}

    def connect(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Make both connections, the pings' first."""
        where = (order["address"], order["port"])
        self._pings, self._bulk = socket.create_connection(where), socket.create_connection(where)
        self._pings.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {}

    def accept(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Take both connections."""
        begun()
        self._pings, self._bulk = self._listener.accept()[0], self._listener.accept()[0]
        self._pings.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {}

    def ping(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Round trips of each size in turn; with `bulk_bytes`, while that much flows over the other connection."""
        connection = _made(self._pings)
        sizes = order["sizes"]
        trips: dict[str, list[float]] = {str(size): [] for size in sizes}
        stop, flowing = threading.Event(), {"bytes": 0.0}
        bulk = threading.Thread(target=self._bulk_out, args=(order["bulk_bytes"], stop, flowing))
        if order["bulk_bytes"]:
            bulk.start()
            time.sleep(order["bulk_lead_s"])
        payloads = {size: bytes(size) for size in sizes}
        begin_s, number = time.monotonic(), 0
        while time.monotonic() - begin_s < order["seconds"]:
            size = sizes[number % len(sizes)]
            started_s = time.perf_counter()
            connection.sendall(size.to_bytes(4, "big") + payloads[size])
            _take(connection, size)
            trips[str(size)].append(time.perf_counter() - started_s)
            number += 1
            time.sleep(order["pause_s"])
        stop.set()
        if order["bulk_bytes"]:
            bulk.join()
        connection.sendall(bytes(4))
        return {"round_trips_s": trips, "bulk": flowing if order["bulk_bytes"] else None}

    def echo(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Send back what comes until a size of 0."""
        connection, number = _made(self._pings), 0
        bulk = threading.Thread(target=self._bulk_in)
        if order["bulk_bytes"]:
            bulk.start()
        begun()
        while size := int.from_bytes(_take(connection, 4), "big"):
            connection.sendall(_take(connection, size))
            number += 1
        if order["bulk_bytes"]:
            bulk.join()
        return {"answered": number}

    def _bulk_out(self, left_bytes: int, stop: threading.Event, flowing: dict[str, float]) -> None:
        """Send frames of a flag and a chunk; the flag 0 ends it."""
        connection, chunk, begin_s = _made(self._bulk), b"\x01" + bytes(CHUNK_BYTES), time.monotonic()
        while left_bytes > 0 and not stop.is_set():
            connection.sendall(chunk)
            flowing["bytes"] += CHUNK_BYTES
            left_bytes -= CHUNK_BYTES
        flowing |= {"exhausted": float(left_bytes <= 0), "seconds": time.monotonic() - begin_s}
        connection.sendall(b"\x00" + bytes(CHUNK_BYTES))

    def _bulk_in(self) -> None:
        connection = _made(self._bulk)
        buffer = memoryview(bytearray(CHUNK_BYTES + 1))
        while True:
            _fill(connection, buffer)
            if not buffer[0]:
                return

    def close(self) -> None:
        """Close everything."""
        for connection in (self._pings, self._bulk, self._listener):
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.close()


def _made(connection: socket.socket | None) -> socket.socket:
    if connection is None:
        raise RuntimeError("not connected")
    return connection


def _take(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    _fill(connection, memoryview(buffer))
    return bytes(buffer)


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        count = connection.recv_into(buffer[done:])
        if not count:
            raise ConnectionError("the other side is gone")
        done += count


def main() -> None:
    """`python -m tools.bench.programs.tcp --address A`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    side = TcpSide(parser.parse_args().address)
    try:
        serve({name: getattr(side, name) for name in ("ports", "connect", "accept", "ping", "echo")})
    finally:
        side.close()


if __name__ == "__main__":
    main()
