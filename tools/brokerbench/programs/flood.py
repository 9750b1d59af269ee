"""Storage: TCP flows that want all there is, and where they end.

    python -m tools.brokerbench.programs.flood sink --address 10.0.3.2 --output FILE
    python -m tools.brokerbench.programs.flood send --address 10.0.3.2 --flows 4
    python -m tools.brokerbench.programs.flood send --address 10.0.3.2 --flows 1000 --busy 4
    python -m tools.brokerbench.programs.flood send --address 10.0.3.2 --flows 1000 --rate 30000000

The sink writes how many bytes have come in all, twenty times a second, a JSON line each. Nothing is copied on either
side more than the kernel must: on a machine with few cores a load that computes would take them from what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import select
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from tools.brokerbench.programs.ending import SECONDS_MAX, Ending

PORT = 8731
CHUNK_BYTES = 256 * 1024
SAMPLE_S = 0.05
CONNECT_S_MAX = 5.0
PIECE_BYTES, TRICKLE_S = 2_000, 0.01


def sink(*, address: str, port: int, out: TextIO, ending: Ending) -> None:
    """Take whatever comes, and say how much it was."""
    selector = selectors.DefaultSelector()
    listener = socket.create_server((address, port), backlog=1024)
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    selector.register(ending.descriptor, selectors.EVENT_READ)
    waste = bytearray(CHUNK_BYTES)
    total, due_s = 0, time.monotonic()
    while ending.in_time:
        for key, _ in selector.select(max(0.0, due_s - time.monotonic())):
            source = key.fileobj
            if source is listener:
                connection = listener.accept()[0]
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            elif isinstance(source, socket.socket):
                count = _taken(source, waste)
                total += count or 0
                if count == 0:
                    selector.unregister(source)
                    source.close()
            elif ending.closed():
                return
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = max(due_s + SAMPLE_S, now_s)
            out.write(json.dumps({"t_s": now_s, "bytes": total}) + "\n")
            out.flush()


def _taken(connection: socket.socket, waste: bytearray) -> int | None:
    """Bytes read and thrown away (tcp(7), MSG_TRUNC); 0 when the other side is gone, None when there are none yet."""
    try:
        return connection.recv_into(waste, len(waste), socket.MSG_TRUNC)
    except BlockingIOError:
        return None
    except OSError:
        return 0


def send(*, address: str, port: int, flows: int, busy: int, ending: Ending) -> int:
    """Keep the first `busy` of so many flows full; one that is lost is made anew. The rest says a word and is silent.

    Returns:
        0, or 1 when as many were lost as there are, or one cannot be made.
    """
    selector = selectors.DefaultSelector()
    selector.register(ending.descriptor, selectors.EVENT_READ)
    silent = [_connected(address, port) for _ in range(flows - busy)]
    for connection in silent:
        connection.send(bytes(PIECE_BYTES))
    for _ in range(busy):
        selector.register(_connected(address, port), selectors.EVENT_WRITE)
    lost = 0
    chunk = memoryview(bytes(CHUNK_BYTES))
    while ending.in_time:
        for key, _ in selector.select(1.0):
            target = key.fileobj
            if isinstance(target, socket.socket):
                try:
                    target.send(chunk)
                except BlockingIOError:
                    continue
                except OSError as error:
                    print(f"a flow to {address} ended: {error}", file=sys.stderr, flush=True)
                    lost += 1
                    if lost > flows:
                        return 1
                    selector.unregister(target)
                    target.close()
                    selector.register(_connected(address, port), selectors.EVENT_WRITE)
            elif ending.closed():
                return 0
    return 0


def trickle(*, address: str, port: int, flows: int, rate_bits_per_s: int, ending: Ending) -> int:
    """Send a little over each of many flows in turn, at a rate of all together. Returns 0."""
    connections = [_connected(address, port) for _ in range(flows)]
    piece, sent, begin_s = bytes(PIECE_BYTES), 0, time.monotonic()
    while ending.in_time:
        while 8 * PIECE_BYTES * sent < rate_bits_per_s * (time.monotonic() - begin_s):
            with contextlib.suppress(BlockingIOError):  # this one has not got rid of what it had: the next one may
                connections[sent % flows].send(piece)
            sent += 1
        if select.select([ending.descriptor], [], [], TRICKLE_S)[0] and ending.closed():
            break
    return 0


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S_MAX)
    connection.setblocking(False)
    return connection


def main() -> None:
    parser = argparse.ArgumentParser(description="The benchmark's storage.")
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    parser.add_argument("--port", type=int, default=PORT)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("sink")
    server.add_argument("--address", required=True)
    server.add_argument("--output", type=Path, required=True)
    client = commands.add_parser("send")
    client.add_argument("--address", required=True)
    client.add_argument("--flows", type=int, default=4)
    client.add_argument("--busy", type=int, default=0, help="flows that want all there is, the first; 0 for all")
    client.add_argument("--rate", type=int, default=0, help="of all flows together, in bit/s; 0 for all there is")
    options = parser.parse_args()
    ending = Ending(options.seconds_max)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a thousand flows, and what is open besides
    if options.command == "sink":
        with options.output.open("a") as out:
            sink(address=options.address, port=options.port, out=out, ending=ending)
        return
    try:
        where = {"address": options.address, "port": options.port, "flows": options.flows}
        if options.rate:
            raise SystemExit(trickle(**where, rate_bits_per_s=options.rate, ending=ending))
        raise SystemExit(send(**where, busy=options.busy or options.flows, ending=ending))
    except OSError as error:
        sys.exit(f"no flow to {options.address}: {error}")


if __name__ == "__main__":
    main()
