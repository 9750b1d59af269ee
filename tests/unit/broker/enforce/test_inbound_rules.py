"""What arrives at passed sockets: each rule is one socket's of the user who passed it, and every user has as many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.enforce.inbound_rules import ADDRESSES_MAX, LOOK_S, SOCKETS_MAX, InboundRules, addresses_of, arrivals_at
from broker.events.log import open_log
from broker.measure.flow_table import PassedSocket
from broker.measure.tcp_diag import BoundSocket
from broker.process import rights
from shaping.model.shapes import Arrival

OWN = ("10.0.0.1", "fd00::1", "fe80::1")


def bound(
    inode: int, *, uid: int = 1000, local: tuple[str, int] = ("10.0.0.1", 40000), versions: tuple[int, ...] = (),
    remote: tuple[str, int] | None = None, device: int = 0,
) -> BoundSocket:  # fmt: skip
    return BoundSocket(inode, uid, "udp", versions, local, remote, device)


def passed(inode: int, *, uid: int = 1000, traffic_class: str = "compute") -> PassedSocket:
    return PassedSocket(f"f-{inode}", "s-1", "j", traffic_class, "gradient", "udp", "10.0.0.1:1", 1, uid, inode)


@dataclass
class Bench:
    """InboundRules whose kernel says what a test wants."""

    listed: dict[int, BoundSocket] = field(default_factory=dict)
    now_s: float = 0.0
    looks: int = 0
    fails: str = ""

    def __post_init__(self) -> None:
        self.receivers = InboundRules(
            log=open_log(), clock=lambda: self.now_s, sockets=self._sockets, addresses=lambda _: OWN
        )

    def _sockets(self, protocols: Mapping[int, str]) -> Mapping[int, BoundSocket]:
        self.looks += 1
        if self.fails:
            raise OSError(self.fails)
        return {inode: one for inode, one in self.listed.items() if inode in protocols}

    def arriving(self, *flows: PassedSocket) -> set[tuple[str, Arrival | None]]:
        return {(rule.target, rule.arrives) for rule in self.receivers.rules("lo", flows)}


@pytest.mark.parametrize(
    ("sock", "addresses"),
    [
        (bound(1), ["10.0.0.1"]),
        (bound(1, local=("0.0.0.0", 5), versions=(4,)), ["10.0.0.1"]),
        (bound(1, local=("::", 5), versions=(6,)), ["fd00::1", "fe80::1"]),
        (bound(1, local=("::", 5), versions=(4, 6)), list(OWN)),
        (bound(1, local=("127.0.0.1", 5432)), []),
        (bound(1, local=("172.17.0.5", 443)), []),  # a container's, by IP_FREEBIND
        (bound(1, local=("0.0.0.0", 0), versions=(4,)), []),
    ],
)
def test_a_socket_gets_what_arrives_at_the_addresses_that_it_shares_with_the_interface(
    sock: BoundSocket, addresses: list[str]
) -> None:
    assert [one.address for one in arrivals_at(sock, OWN)] == addresses


def test_a_socket_of_a_container_is_of_the_user_whose_container_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "subuid").write_text("1000:100000:65536\n")
    monkeypatch.setattr(rights, "owner_of", rights.UserOwners(tmp_path / "subuid").owner_of)
    bench = Bench({1: bound(1, uid=100_999), 2: bound(2, uid=200_999, local=("10.0.0.1", 40001))})
    arriving = bench.arriving(passed(1, uid=1000), passed(2, uid=1000))
    assert arriving == {("compute", Arrival("udp", "10.0.0.1", 40000, None))}


def test_of_many_addresses_a_socket_that_takes_all_has_a_bounded_number() -> None:
    many = [f"10.0.0.{number}" for number in range(100)]
    assert len(arrivals_at(bound(1, local=("0.0.0.0", 5), versions=(4,)), many)) == ADDRESSES_MAX


def test_what_arrives_is_the_users_who_holds_the_socket_and_who_passed_it() -> None:
    bench = Bench({1: bound(1, uid=1000), 2: bound(2, uid=1000, remote=("10.0.0.9", 7))})
    mine = Arrival("udp", "10.0.0.1", 40000)
    assert bench.arriving(passed(1)) == {("compute", mine)}
    assert bench.arriving(passed(1, uid=1001, traffic_class="storage")) == set()
    assert bench.arriving(passed(1, uid=0, traffic_class="storage")) == {("storage", mine)}
    assert bench.arriving(passed(1), passed(1, traffic_class="storage")) == {("storage", mine)}
    bench.now_s += LOOK_S
    assert bench.arriving(passed(2)) == {("compute", Arrival("udp", "10.0.0.1", 40000, ("10.0.0.9", 7)))}


def test_a_socket_of_another_network_namespace_or_that_is_closed_or_of_another_interface_has_no_rule() -> None:
    bench = Bench({1: bound(1), 3: bound(3, device=4711)})
    assert bench.arriving(passed(1), passed(2), passed(3)) == {("compute", Arrival("udp", "10.0.0.1", 40000))}
    del bench.listed[1]
    bench.now_s += LOOK_S
    assert bench.arriving(passed(1), passed(2), passed(3)) == set()


def test_no_user_takes_the_places_of_another() -> None:
    bench = Bench({number: bound(number, local=("10.0.0.1", 1024 + number), uid=1001) for number in range(200)})
    bench.listed[500] = bound(500, local=("10.0.0.1", 60000))
    crowd = [passed(number, uid=1001, traffic_class="storage") for number in range(200)]
    rules = bench.arriving(*crowd, passed(500))
    assert len(rules) == SOCKETS_MAX
    assert ("compute", Arrival("udp", "10.0.0.1", 60000)) in rules


def test_the_kernel_is_asked_once_a_second_and_not_for_nobody() -> None:
    bench = Bench({1: bound(1)})
    bench.arriving()
    assert bench.looks == 0
    for _ in range(20):
        bench.now_s += LOOK_S / 10
        bench.arriving(passed(1))
    assert bench.looks == 2


def test_where_the_kernel_does_not_say_nothing_is_told_apart() -> None:
    bench = Bench({1: bound(1)}, fails="no udp_diag")
    assert bench.arriving(passed(1)) == set()


@pytest.mark.parametrize(
    "problem", [OSError(105, "No buffer space available"), UnicodeDecodeError("utf-8", b"x", 0, 1, "")]
)
def test_addresses_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fail() -> None:
        raise problem

    monkeypatch.setattr("psutil.net_if_addrs", fail)
    assert addresses_of("lo") == []
