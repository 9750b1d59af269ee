"""A side that asks how long the way there and back takes: ICMP echoes past whatever else fills the link (RFC 792)."""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from tools.bench.programs.conversation import Begun, Order, serve

EVERY_S = 0.02
LATE_S = 1.0
"""After the last question, for answers that still wait in a queue."""
REQUEST, REPLY = 8, 0


class ProbeSide:
    """The handlers of this program's orders."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._number = os.getpid() & 0xFFFF

    def probe(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Ask `address` for `seconds`; gives when each answered question was asked, and after how long."""
        asked: dict[int, float] = {}
        answered: list[tuple[float, float]] = []
        begun()
        begin_s = time.monotonic()
        end_s, next_s, sequence = begin_s + order["seconds"], begin_s, 0
        while (now_s := time.monotonic()) < end_s + LATE_S and (now_s < end_s or len(answered) < len(asked)):
            if now_s >= next_s and now_s < end_s:
                next_s, sequence = now_s + EVERY_S, (sequence + 1) & 0xFFFF
                asked[sequence] = now_s
                self._sock.sendto(echo_request(self._number, sequence), (order["address"], 0))
            until_s = next_s if now_s < end_s else end_s + LATE_S
            if select.select([self._sock], [], [], max(0.0, until_s - now_s))[0]:
                sequence_back = answered_by(self._sock.recv(2048), self._number)
                if sequence_back in asked:
                    at_s = asked[sequence_back]
                    answered.append((at_s, time.monotonic() - at_s))
        return {"asked": len(asked), "answered": answered}


def answered_by(packet: bytes, number: int) -> int | None:
    """Which of the questions of `number` an IPv4 packet answers; None for anything else."""
    kind, _, _, found, sequence = struct.unpack_from("!BBHHH", packet, 4 * (packet[0] & 0x0F))
    return int(sequence) if (kind, found) == (REPLY, number) else None


def echo_request(number: int, sequence: int) -> bytes:
    """A question without content; its checksum is the complement of the sum of its words."""
    total = (REQUEST << 8) + number + sequence
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHH", REQUEST, 0, ~total & 0xFFFF, number, sequence)


def main() -> None:
    """`python -m tools.bench.programs.probe`."""
    argparse.ArgumentParser().parse_args()
    serve({"probe": ProbeSide().probe})


if __name__ == "__main__":
    main()
