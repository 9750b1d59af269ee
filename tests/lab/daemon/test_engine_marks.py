"""One socket a traffic class: each carries the mark that the broker gave it, on the wire, and after a move too."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_host import Broker
from moving_ranks import running
from patience import wait_until
from test_broker_daemon import broker, folder

from shaping.model.names import BULK_NAME, DSCP
from tools.lab import Host, Lab

__all__ = ["broker", "folder"]

ETH_P_ALL, ETH_P_IP, ETH_P_IPV6, UDP = 3, 0x0800, 0x86DD, 17
MARKS = {DSCP["compute"], DSCP[BULK_NAME]}
Seen = dict[tuple[str, int], list[int]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("marks") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        yield lab.up()


@contextmanager
def wire(lab: Lab) -> Iterator[socket.socket]:
    """What comes into host b from now on."""
    with lab["b"].enter(), socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as sock:
        sock.setblocking(False)
        yield sock


def codepoints(sock: socket.socket) -> Seen:
    """The codepoints of the datagrams that have come, by the address and port that they are from, in their order."""
    seen: Seen = defaultdict(list)
    with contextlib.suppress(BlockingIOError):
        while True:
            packet, where = sock.recvfrom(128)
            if where[1] == ETH_P_IP and packet[9] == UDP:
                source, first, payload = socket.inet_ntop(socket.AF_INET, packet[12:16]), packet[1], packet[20:]
            elif where[1] == ETH_P_IPV6 and packet[6] == UDP:
                source, payload = socket.inet_ntop(socket.AF_INET6, packet[8:24]), packet[40:]
                first = struct.unpack("!H", packet[:2])[0] >> 4 & 0xFF
            else:
                continue
            seen[source, struct.unpack("!H", payload[:2])[0]].append(first >> 2)
    return seen


def replace(host: Host, old: str, new: str) -> None:
    host.run(["ip", "address", "del", old, "dev", "eth0"])
    host.run(["ip", "address", "add", new, "dev", "eth0", *(["nodad"] if ":" in new else [])])


@contextmanager
def one_family(lab: Lab, *, six: bool) -> Iterator[None]:
    """Both hosts have addresses of one family alone: with two, either may carry a pair's messages."""
    others = {name: f"{lab[name].address}/24" if six else f"{lab[name].address6}/64" for name in "ab"}
    for name, address in others.items():
        lab[name].run(["ip", "address", "del", address, "dev", "eth0"])
    try:
        yield
    finally:
        for name, address in others.items():
            lab[name].run(["ip", "address", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else [])])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("engine", "six"),
    [
        ("native", False),
        pytest.param("native", True, marks=pytest.mark.long),
        pytest.param("aioquic", False, marks=pytest.mark.long),
    ],
)
def test_both_sockets_of_a_rank_are_marked_each_for_its_own_and_so_are_those_of_its_next_address(
    lab: Lab, broker: Broker, tmp_path: Path, engine: str, six: bool
) -> None:
    a = lab["a"]
    old = a.address6 if six else a.address
    new, length = old.rpartition("::" if six else ".")[0] + ("::77" if six else ".77"), 64 if six else 24
    before = broker.sent_bytes("compute")
    with (
        one_family(lab, six=six),
        running(lab, tmp_path, [("a", engine), ("b", engine)], six=six, broker=broker.sessions) as programs,
    ):
        last: dict[tuple[str, int], int] = {}
        for address in (old, new):
            if address == new:
                replace(a, f"{old}/{length}", f"{new}/{length}")

            def marked(address: str = address) -> bool:
                """Of two sockets at this address, the last that came from each carries one of both marks."""
                with wire(lab) as sock:
                    for one in programs:
                        one.rounds(2)
                    seen = codepoints(sock)
                last.update((where, codes[-1]) for where, codes in seen.items())
                here = {where[1]: code for where, code in last.items() if where[0] == address}
                return len(here) == 2 and set(here.values()) == MARKS

            wait_until(marked, what=last.items)
        for one in programs:
            one.end()
    wait_until(lambda: broker.sent_bytes("compute") - before > 1_000_000, what=broker.status)
    replace(a, f"{new}/{length}", f"{old}/{length}")
