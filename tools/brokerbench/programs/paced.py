"""Numbered datagrams at a steady pace, and who counts whether all of them come, and in order.

    python -m tools.brokerbench.programs.paced receive --address 10.0.3.2 --output FILE
    python -m tools.brokerbench.programs.paced send --address 10.0.3.2 --rate 50000000

The sender marks its packets as the broker marks those of a job of training (slot 0). When its standard input ends it
sends a short datagram, many times, that says how many there were; the receiver writes what it found when one of them
comes, as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from pathlib import Path

from shaping.classify.socket_priority import mark_socket
from shaping.model.names import DSCP, JOB_MINOR
from tools.brokerbench.programs.ending import Ending

PORT = 8732
PAYLOAD_BYTES, WIRE_BYTES = 1400, 1442
BATCH_S = 0.004
LAST_TIMES, LAST_EVERY_S = 20, 0.05
SEND_BUFFER_BYTES = 64 * 1024
"""Less than any queue of the tree: a sender that was held up by the machine blocks then, and loses nothing itself."""
RECEIVE_BUFFER_BYTES = 32 * 2**20
SO_RCVBUFFORCE = 33
LENGTH_BYTES = 8


def send(*, address: str, rate_bits_per_s: int, ending: Ending) -> None:
    """Send at a rate of the wire; a batch is late rather than dropped when the socket is full."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    mark_socket(sock, minor=JOB_MINOR[0], dscp=DSCP["compute"])
    target, filler = (address, PORT), bytes(PAYLOAD_BYTES - LENGTH_BYTES)
    packets_per_s = rate_bits_per_s / 8 / WIRE_BYTES
    sent, begin_s = 0, time.monotonic()
    while ending.in_time:
        while sent < (time.monotonic() - begin_s) * packets_per_s:
            sock.sendto(sent.to_bytes(LENGTH_BYTES, "big") + filler, target)
            sent += 1
        if select.select([ending.descriptor], [], [], BATCH_S)[0] and ending.closed():
            break
    for _ in range(LAST_TIMES):
        sock.sendto(sent.to_bytes(LENGTH_BYTES, "big"), target)
        time.sleep(LAST_EVERY_S)


def receive(*, address: str, output: Path, seconds_max: float) -> None:
    """Count until the sender says that it was all."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    sock.bind((address, PORT))
    sock.settimeout(seconds_max)
    print("up", flush=True)
    received = reordered = 0
    following, last_s, longest_s = 0, 0.0, 0.0
    while len(data := sock.recv(2048)) == PAYLOAD_BYTES:
        now_s = time.monotonic()
        number = int.from_bytes(data[:LENGTH_BYTES], "big")
        longest_s = max(longest_s, now_s - last_s) if received else 0.0
        received, last_s = received + 1, now_s
        reordered += number < following
        following = max(following, number + 1)
    sent = int.from_bytes(data[:LENGTH_BYTES], "big")
    found = {"sent": sent, "received": received, "reordered": reordered, "longest_gap_s": longest_s}
    output.write_text(json.dumps(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Numbered datagrams.")
    commands = parser.add_subparsers(dest="command", required=True)
    sender = commands.add_parser("send")
    sender.add_argument("--address", required=True)
    sender.add_argument("--rate", type=int, required=True)
    sender.add_argument("--seconds-max", type=float, default=300.0)
    receiver = commands.add_parser("receive")
    receiver.add_argument("--address", required=True)
    receiver.add_argument("--output", type=Path, required=True)
    receiver.add_argument("--seconds-max", type=float, default=300.0)
    options = parser.parse_args()
    if options.command == "send":
        send(address=options.address, rate_bits_per_s=options.rate, ending=Ending(options.seconds_max))
        return
    try:
        receive(address=options.address, output=options.output, seconds_max=options.seconds_max)
    except TimeoutError:
        sys.exit(f"no datagram for {options.seconds_max:g} s")


if __name__ == "__main__":
    main()
