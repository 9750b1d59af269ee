"""Storage is held back towards one address and nowhere else, however its packets came to be storage; jobs likewise."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until
from shaping_bench import FAMILIES, INTERFACE, PAYLOAD_BYTES, RECEIVER, Bench, tool
from shaping_contract import MBIT, make_shape

from shaping import cgroup
from shaping.model import (
    DSCP,
    MARK_MINOR,
    DestinationShape,
    InterfaceShape,
    Rule,
)
from shaping.shaper import Shaper
from shaping.sockets import mark_socket
from tools.lab.kernel import entered


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of our own, removed when the processes in it have ended."""
    path = cgroup.mount() / f"hqdestination-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


ELSEWHERE = {socket.AF_INET: "10.211.0.3", socket.AF_INET6: "fd21::3"}
"""A second address of the receiver, which nobody holds back."""


@pytest.fixture(autouse=True, scope="module")
def another_address(bench: Bench) -> None:
    mac = tool("ip", "-n", bench.receiver, "-o", "link", "show", "dev", INTERFACE).split("link/ether ")[1].split()[0]
    for address, prefix in zip(ELSEWHERE.values(), ("24", "64"), strict=True):
        tool("ip", "-n", bench.receiver, "addr", "add", f"{address}/{prefix}", "dev", INTERFACE)
        neighbour = ["replace", address, "lladdr", mac, "dev", INTERFACE, "nud", "permanent"]
        tool("ip", "-n", bench.sender, "neigh", *neighbour)


def held(**kwargs: object) -> InterfaceShape:
    """Both of the receiver's first addresses held to 20 kbit/s."""
    return make_shape(
        INTERFACE,
        destinations=tuple(
            DestinationShape(address, rate_bits_per_s=20_000, ceil_bits_per_s=20_000) for address in RECEIVER.values()
        ),
        **kwargs,  # type: ignore[arg-type]  # the same keywords
    )


def packets_to(shaper: Shaper, send: Callable[[], None]) -> dict[str, int]:
    """Packets that went, or wait to go, to each address with a leaf, and of storage elsewhere; none are left out."""

    def counted() -> dict[str, int]:
        found = shaper.counters(INTERFACE)
        single = {address: one.sent_packets + one.backlog_packets for address, one in found.destinations.items()}
        storage = found.classes["storage"]
        return {**single, "elsewhere": storage.sent_packets + storage.backlog_packets - sum(single.values())}

    before = counted()
    send()
    return {name: count - before[name] for name, count in counted().items() if count != before[name]}


SEND = """
import os, socket, sys
if sys.argv[1]:
    open(sys.argv[1], "w").write(str(os.getpid()))
for address in sys.argv[2:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        for _ in range(10):
            sock.sendto(bytes(1000), (address, 873))
"""


@pytest.mark.parametrize("way", ["socket", "cgroup", "port"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packets_find_their_destinations_leaf_however_they_are_classified(
    shaper: Shaper, bench: Bench, way: str, family: socket.AddressFamily, group: Path
) -> None:
    rules = {"cgroup": (Rule("storage", cgroup=group.name),), "port": (Rule("storage", port=873),)}
    assert shaper.attach(held(rules=rules.get(way, ()))).notes == ()
    addresses = (RECEIVER[family], ELSEWHERE[family])

    def send() -> None:
        if way == "socket":
            with bench.socket(family) as sock:
                mark_socket(sock, minor=shaper.mark_minor("storage"), dscp=DSCP["storage"])
                for address in addresses:
                    for _ in range(10):
                        sock.sendto(bytes(PAYLOAD_BYTES), (address, 9))
            return
        joined = str(group / "cgroup.procs") if way == "cgroup" else ""
        child = ["nsenter", f"--net=/run/netns/{bench.sender}", "python3", "-c", SEND, joined, *addresses]
        subprocess.run(child, check=True, timeout=LIMIT_S)

    assert packets_to(shaper, send) == {RECEIVER[family]: 10, "elsewhere": 10}


def test_tcp_is_held_towards_one_address_and_flows_to_another(shaper: Shaper, bench: Bench) -> None:
    shaper.attach(held())
    arrived: dict[str, int] = {}
    with entered(bench.receiver), socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def take() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                threading.Thread(target=drain, args=(connection,), daemon=True).start()

        def drain(connection: socket.socket) -> None:
            address = connection.getsockname()[0]
            with connection:
                while data := connection.recv(65536):
                    arrived[address] = arrived.get(address, 0) + len(data)

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        senders = []
        for address in (RECEIVER[socket.AF_INET], ELSEWHERE[socket.AF_INET]):
            with entered(bench.sender):
                sock = socket.socket()
            mark_socket(sock, minor=MARK_MINOR["storage"], dscp=DSCP["storage"])
            sock.settimeout(LIMIT_S)
            sock.connect((address, port))
            senders.append(sock)
        for sock in senders:
            threading.Thread(target=sock.sendall, args=(bytes(2_000_000),), daemon=True).start()
        wait_until(lambda: arrived.get(ELSEWHERE[socket.AF_INET], 0) == 2_000_000, what=lambda: arrived)
        assert arrived.get(RECEIVER[socket.AF_INET], 0) < 200_000  # 20 kbit/s: 2 MB would take 13 minutes
        shaper.apply(
            make_shape(
                INTERFACE, destinations=tuple(replace(one, ceil_bits_per_s=40 * MBIT) for one in held().destinations)
            )
        )
        wait_until(lambda: arrived.get(RECEIVER[socket.AF_INET], 0) == 2_000_000, what=lambda: arrived)
        for sock in senders:
            sock.close()
        taking.join(LIMIT_S)
