"""People: an ICMP echo fifty times a second, and how long each took (RFC 792).

    python -m tools.brokerbench.programs.echoes --address 10.0.3.2 --output FILE

Writes a JSON line for each answer: when it was asked, and after how long it came. No answer, no line.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import time
from pathlib import Path
from typing import TextIO

from tools.bench.programs.probe import EVERY_S, answered_by, echo_request
from tools.brokerbench.programs.ending import SECONDS_MAX, Ending

REMEMBERED = 1000
"""Questions that may still be answered: twenty seconds of them."""


def ask(*, address: str, out: TextIO, ending: Ending) -> None:
    """Ask until the end."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    number, sequence = os.getpid() & 0xFFFF, 0
    asked: dict[int, float] = {}
    next_s = time.monotonic()
    while ending.in_time:
        if (now_s := time.monotonic()) >= next_s:
            next_s, sequence = now_s + EVERY_S, (sequence + 1) & 0xFFFF
            asked[sequence] = now_s
            asked.pop((sequence - REMEMBERED) & 0xFFFF, None)
            sock.sendto(echo_request(number, sequence), (address, 0))
        ready = select.select([sock, ending.descriptor], [], [], max(0.0, next_s - now_s))[0]
        if ending.descriptor in ready and ending.closed():
            return
        if sock in ready:
            answer = answered_by(sock.recv(2048), number)
            if answer is not None and (asked_s := asked.pop(answer, None)) is not None:
                out.write(json.dumps({"t_s": asked_s, "trip_s": time.monotonic() - asked_s}) + "\n")
                out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="The benchmark's people.")
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    parser.add_argument("--address", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with options.output.open("a") as out:
        ask(address=options.address, out=out, ending=Ending(options.seconds_max))


if __name__ == "__main__":
    main()
