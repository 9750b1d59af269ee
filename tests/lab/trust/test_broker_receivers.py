"""What arrives at passed sockets, in our own IFB: real sockets, the kernel's list of them, its filters, and packets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from msgspec.structs import replace
from patience import wait_until
from shaping_bench import INTERFACE, PAYLOAD_BYTES, SENDER, Bench

from broker.enforce.inbound_rules import InboundRules
from broker.enforce.ingress import IngressTrees
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.flow_table import PassedSocket
from broker.model.values import Allocation, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from shaping.shaper import Shaper
from tools.lab.kernel import entered

POLICY = load(f'version = 1\n[[interface]]\nname = "{INTERFACE}"\negress = "40 Mbit/s"\n')
MINE, ANOTHER = 61_001, 61_002
PORT, PACKETS = 5432, 10
WILDCARD = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class Host:
    """The shaped host (`bench.sender`), whose way in is shaped by what is passed."""

    def __init__(self, bench: Bench, shaper: Shaper) -> None:
        self.bench, self._now_s = bench, 0.0
        clock = lambda: self._now_s  # noqa: E731
        self._egress_trees = IngressTrees(
            shaper.ingress, receivers=InboundRules(log=open_log(), clock=clock), log=open_log(), clock=clock
        )
        decided = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation
        ingress = tuple(replace(one, in_kernel=True) for one in decided.interfaces)
        self._wanted = Allocation(interfaces=decided.interfaces, ingress=ingress)

    def _clock(self) -> float:
        return self._now_s

    def shape(self, *passed: PassedSocket) -> None:
        self._now_s += 10.0
        self._egress_trees.apply(self._wanted, policy=POLICY, passed=passed, present=frozenset({INTERFACE}))
        assert self._egress_trees.alarms() == ()

    def sent_bytes(self) -> dict[str, int]:
        counted = self._egress_trees.read(INTERFACE)
        assert counted is not None
        return {one.name: one.sent_bytes for one in counted if one.name in CLASS_NAMES}

    def class_of_what_arrives(self, family: socket.AddressFamily, port: int = PORT, *, source: int = 0) -> str:
        """The class in which datagrams to a port count."""
        before = self.sent_bytes()

        def grown() -> list[str]:
            now = self.sent_bytes()
            return [name for name in now if now[name] - before[name] >= PACKETS * PAYLOAD_BYTES]

        with entered(self.bench.receiver), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((WILDCARD[family], source))
            for _ in range(PACKETS):
                sock.sendto(bytes(PAYLOAD_BYTES), (SENDER[family], port))
        wait_until(grown, what=self.sent_bytes)
        (name,) = grown()
        return name

    @contextmanager
    def socket(
        self, family: socket.AddressFamily, address: str, port: int = PORT, *, uid: int = MINE
    ) -> Iterator[socket.socket]:
        with entered(self.bench.sender):
            sock = socket.socket(family, socket.SOCK_DGRAM)
        with closing(sock):
            os.fchown(sock.fileno(), uid, uid)  # as if that user had made it
            sock.bind((address, port))
            yield sock


def passed(sock: socket.socket, *, uid: int = MINE, traffic_class: str = "storage") -> PassedSocket:
    inode = os.fstat(sock.fileno()).st_ino
    return PassedSocket(f"f-{inode}", "s-1", "j", traffic_class, "storage", "udp", "", 1, uid, inode)


@pytest.fixture
def host(bench: Bench, shaper: Shaper) -> Host:
    return Host(bench, shaper)


@pytest.mark.parametrize("family", list(SENDER))
@pytest.mark.parametrize("everywhere", [False, True])
def test_what_arrives_at_a_users_own_socket_is_of_its_class(
    host: Host, family: socket.AddressFamily, everywhere: bool
) -> None:
    with host.socket(family, WILDCARD[family] if everywhere else SENDER[family]) as sock:
        host.shape(passed(sock, traffic_class="compute"))
        assert host.class_of_what_arrives(family) == "compute"
        assert host.class_of_what_arrives(family, PORT + 1) == "other"


def test_a_connected_socket_gets_what_its_peer_sends_alone(host: Host) -> None:
    with host.socket(socket.AF_INET, SENDER[socket.AF_INET]) as sock:
        sock.connect(("10.211.0.2", 7000))
        host.shape(passed(sock))
        assert host.class_of_what_arrives(socket.AF_INET, source=7000) == "storage"
        assert host.class_of_what_arrives(socket.AF_INET, source=7001) == "other"


def test_nobody_classifies_what_arrives_at_the_socket_of_another(host: Host, bench: Bench) -> None:
    family = socket.AF_INET
    with (
        host.socket(family, SENDER[family], uid=ANOTHER) as victim,
        host.socket(family, "127.0.0.1") as loopback,
        closing(_elsewhere(bench)) as elsewhere,
    ):
        host.shape(passed(loopback), passed(elsewhere), passed(victim))
        assert host.class_of_what_arrives(family) == "other"
        host.shape(passed(loopback), passed(elsewhere), passed(victim, uid=ANOTHER, traffic_class="compute"))
        assert host.class_of_what_arrives(family) == "compute"


def _elsewhere(bench: Bench) -> socket.socket:
    """The same port, in another network namespace."""
    with entered(bench.receiver):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    os.fchown(sock.fileno(), MINE, MINE)
    sock.bind(("0.0.0.0", PORT))
    return sock


def test_who_binds_the_port_after_it_was_passed_and_closed_is_left_alone(host: Host) -> None:
    family = socket.AF_INET
    with host.socket(family, SENDER[family]) as sock:
        flow = passed(sock)
        host.shape(flow)
        assert host.class_of_what_arrives(family) == "storage"
    with host.socket(family, SENDER[family], uid=ANOTHER):
        host.shape(flow)
        assert host.class_of_what_arrives(family) == "other"
