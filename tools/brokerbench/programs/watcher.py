"""Tells of every change of a traffic class in this network namespace, when the kernel does (rtnetlink(7), RTNLGRP_TC).

    python -m tools.brokerbench.programs.watcher --output FILE

Writes a JSON line for each: when, which class (its minor), rate and ceil. Nothing is polled: the kernel says so itself.
It goes before ordinary programs on the processor, so that its own waiting is not taken for the daemon's.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tools.brokerbench.programs.ending import SECONDS_MAX, Ending

RTMGRP_TC, RTM_NEWTCLASS = 8, 40
TCA_OPTIONS, TCA_HTB_PARMS = 2, 1
NLA_TYPE_MASK = 0x3FFF
HEADER, TCMSG = struct.Struct("=IHHII"), struct.Struct("=BxxxiIII")
RATE_AT, CEIL_AT = 8, 20
"""In `struct tc_htb_opt`: bytes a second, in the last four of twelve bytes each."""


def changes(data: bytes) -> Iterator[dict[str, int]]:
    """The classes that a datagram of netlink tells of."""
    while len(data) >= HEADER.size:
        length, kind, _flags, _sequence, _port = HEADER.unpack_from(data)
        if length < HEADER.size:
            return
        message, data = data[HEADER.size : length], data[(length + 3) & ~3 :]
        if kind != RTM_NEWTCLASS:
            continue
        _family, _interface, handle, _parent, _info = TCMSG.unpack_from(message)
        options = dict(_attributes(message[TCMSG.size :])).get(TCA_OPTIONS, b"")
        parameters = dict(_attributes(options)).get(TCA_HTB_PARMS, b"")
        if len(parameters) >= CEIL_AT + 4:
            (rate,), (ceil,) = (
                struct.unpack_from("=I", parameters, RATE_AT),
                struct.unpack_from("=I", parameters, CEIL_AT),
            )
            yield {"minor": handle & 0xFFFF, "rate_bits_per_s": 8 * rate, "ceil_bits_per_s": 8 * ceil}


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & NLA_TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Changes of traffic classes, as they come.")
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    ending = Ending(options.seconds_max)
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock,
        options.output.open("a") as out,
    ):
        sock.bind((0, RTMGRP_TC))
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        while ending.in_time:
            ready = select.select([sock, ending.descriptor], [], [], 1.0)[0]
            if ending.descriptor in ready and ending.closed():
                return
            if sock in ready:
                data, now_s = sock.recv(65536), time.monotonic()
                for change in changes(data):
                    out.write(json.dumps({"t_s": now_s, **change}) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
