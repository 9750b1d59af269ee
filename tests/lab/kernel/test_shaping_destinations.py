"""Storage is held back towards one address and nowhere else, however its packets came to be storage; jobs likewise."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until
from shaping_bench import FAMILIES, INTERFACE, PAYLOAD_BYTES, RECEIVER, Bench, tool
from shaping_contract import MBIT, make_shape

from shaping.classify import cgroup
from shaping.classify.socket_priority import mark_socket
from shaping.kernel import RealKernel
from shaping.model.names import DESTINATION_MINOR, DSCP, JOB_MINOR, LEAF_MINOR, MARK_MINOR, classid
from shaping.model.shapes import DestinationShape, InterfaceShape, JobShape, Rule
from shaping.model.tree import AddClass
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import diff
from shaping.shaper import Shaper
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


IPV4_TO_RECEIVER = bytes.fromhex("450000240000400040110000") + socket.inet_aton("10.211.0.1")
FRAMES = {
    "vlan": (0x8100, bytes.fromhex("00070800") + IPV4_TO_RECEIVER + socket.inet_aton(RECEIVER[socket.AF_INET])),
    "pppoe": (0x8864, bytes(40)),
    "arp": (0x0806, bytes(28)),
}
"""What follows the Ethernet addresses: the protocol, as a qdisc sees it, and the rest of the frame. At the parent of a
VLAN device it is 0x8100, too."""


@pytest.mark.parametrize("kind", FRAMES)
def test_storage_that_is_no_bare_ip_stays_storage(shaper: Shaper, bench: Bench, kind: str) -> None:
    shaper.attach(held())
    protocol, rest = FRAMES[kind]
    with entered(bench.sender):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with sock:
        sock.bind((INTERFACE, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=I", classid(MARK_MINOR["storage"])))
        frame = bytes(12) + protocol.to_bytes(2, "big") + rest

        def send() -> None:
            for _ in range(10):
                sock.sendto(frame, (INTERFACE, protocol))

        assert packets_to(shaper, send) == {"elsewhere": 10}


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


CHANGES = 300
PACED_BITS_PER_S = 5 * MBIT
"""An eighth of the capacity, in four flows: each less than its class, address or job has at any moment below."""


def shapes_in_turn(number: int) -> InterfaceShape:
    """Rates and ceilings of a class, an address and a job, up and down, and an address that nobody sends to."""
    even = number % 2
    return make_shape(
        INTERFACE,
        capacity=(40, 60)[even] * MBIT,
        storage=(8, 12, 10)[number % 3] * MBIT,
        storage_ceil=(20, 40)[even] * MBIT,
        destinations=(
            *(
                DestinationShape(address, "storage", (2, 3)[even] * MBIT, (4, 9)[even] * MBIT)
                for address in RECEIVER.values()
            ),
            *([DestinationShape(f"10.9.0.{number % 7 + 1}")] if number % 3 else []),
        ),
        jobs=(JobShape(0, (2, 5)[even] * MBIT, (6, 30)[even] * MBIT, number % 3, (1.0, 4.0)[even]),),
    )


def test_hundreds_of_changes_under_paced_datagrams_lose_reorder_and_purge_nothing(shaper: Shaper, bench: Bench) -> None:
    shaper.attach(shapes_in_turn(0))
    arrived: dict[int, list[int]] = {}
    ending = threading.Event()
    sent = {}
    marks = {0: MARK_MINOR["storage"], 1: JOB_MINOR[0], 2: MARK_MINOR["compute"], 3: MARK_MINOR["other"]}
    with bench.sink(socket.AF_INET) as sink:
        port = sink.getsockname()[1]

        def take() -> None:
            while True:
                data = sink.recv(2000)
                if len(data) < PAYLOAD_BYTES:
                    return
                arrived.setdefault(data[0], []).append(int.from_bytes(data[1:5], "big"))

        def pace() -> None:
            socks = {}
            for flow, minor in marks.items():
                socks[flow] = bench.socket(socket.AF_INET)
                mark_socket(socks[flow], minor=minor, dscp=None)
            number, began_s = 0, time.monotonic()
            while not ending.is_set():
                for flow, sock in socks.items():
                    payload = bytes([flow]) + number.to_bytes(4, "big") + bytes(PAYLOAD_BYTES - 5)
                    sock.sendto(payload, (RECEIVER[socket.AF_INET], port))
                    sent[flow] = number
                number += 1
                due_s = began_s + number * len(socks) * PAYLOAD_BYTES * 8 / PACED_BITS_PER_S
                began_s += max(0.0, time.monotonic() - due_s - 0.05)  # what a stall held up is not made up for
                time.sleep(max(0.0, due_s - time.monotonic()))
            for sock in socks.values():
                sock.close()

        taking, pacing = threading.Thread(target=take), threading.Thread(target=pace)
        taking.start()
        pacing.start()
        try:
            changed = sum(bool(shaper.apply(shapes_in_turn(number))) for number in range(1, CHANGES + 1))
        finally:
            ending.set()
            pacing.join()
        assert changed == CHANGES
        wait_until(
            lambda: all(len(arrived.get(flow, [])) == sent[flow] + 1 for flow in marks), what=lambda: (arrived, sent)
        )
        with bench.socket(socket.AF_INET) as last:
            last.sendto(b"end", (RECEIVER[socket.AF_INET], port))
        taking.join(LIMIT_S)
    assert arrived == {flow: list(range(sent[flow] + 1)) for flow in marks}
    assert not any(found.dropped_packets for found in shaper.counters(INTERFACE).classes.values())


def test_a_tree_without_the_spare_leaves_is_completed_without_losing_what_waits(
    shaper: Shaper, bench: Bench, tmp_path: Path
) -> None:
    """What a former version built: the same but for the leaves and filters of destinations and jobs."""
    shape = make_shape(INTERFACE, storage=20_000, storage_ceil=20_000)
    with entered(bench.sender):
        kernel = RealKernel()
    new = desired_tree(shape, kernel.capabilities())
    former = replace(
        new,
        classes=tuple(spec for spec in new.classes if spec.minor not in (*DESTINATION_MINOR, *JOB_MINOR)),
        leaves=tuple(leaf for leaf in new.leaves if leaf.parent_minor not in (*DESTINATION_MINOR, *JOB_MINOR)),
        filters=(),
    )
    kernel.apply(INTERFACE, diff(None, former))
    with bench.sink(socket.AF_INET) as sink, bench.socket(socket.AF_INET) as sock:
        mark_socket(sock, minor=LEAF_MINOR["storage"], dscp=None)
        for number in range(60):
            sock.sendto(number.to_bytes(2, "big") + bytes(PAYLOAD_BYTES - 2), sink.getsockname())
        attachment = shaper.attach(shape)
        assert attachment.adopted
        assert sum(isinstance(operation, AddClass) for operation in attachment.operations) == 16
        assert shaper.counters(INTERFACE).classes["storage"].backlog_packets > 20
        shaper.apply(make_shape(INTERFACE))
        assert [int.from_bytes(sink.recv(2000)[:2], "big") for _ in range(60)] == list(range(60))
    kernel.close()
