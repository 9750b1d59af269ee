"""Ranks that cannot be dialled where they say ask others from where these are dialled, and dial them there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields

import pytest

from transport.engine.base import Address, ConnectionStatistics
from transport.mesh.introductions import ASK_S, ASKED_MAX, RELAY_ASKED, Introductions
from transport.mesh.paths import Location, Path
from transport.mesh.peers import SEEN_WAYS_MAX, UNTOLD, Action, AskForBulk, Contact, Dial, PeerTable
from transport.mesh.relays import Relays
from transport.mesh.sockets import Sockets

SIZE = 7
OUTSIDE = ("203.0.113.7", 40_000)


def location(rank: int) -> Location:
    return Location(0, f"192.168.{rank}.2", 5000, 6000)


def statistics(remote: Address) -> ConnectionStatistics:
    times = {"rtt_s": 0.01, "rtt_s_min": 0.01, "rtt_latest_s": 0.01, "application_limited": False}
    names = [field.name for field in fields(ConnectionStatistics)]
    counts = {name: 0 for name in names if name.endswith(("_bytes", "_packets", "_per_s"))}
    return ConnectionStatistics(**{"peer": "node", "remote": remote, "bulk": False, **times, **counts})  # type: ignore[arg-type]


class Side:
    """Rank 3 of seven, with what it has sent."""

    def __init__(self, rank: int = 3) -> None:
        self.rank = rank
        contacts = [Contact(other, f"node-{other}", (location(other),)) for other in range(SIZE) if other != rank]
        self.peers = PeerTable(rank, [location(rank)], contacts, reconnect_s=2.0, now_s=100.0)
        self.sent: list[tuple[int, Mapping[str, object]]] = []
        self.remotes: dict[int, Address] = {}
        self.opened: list[Sockets] = []
        self.relays = Relays((), self.opened.append)
        self.introductions = Introductions(
            self.peers,
            lambda to, message: self.sent.append((to, message)),
            lambda: {number: statistics(remote) for number, remote in self.remotes.items()},
            self.relays,
        )

    def up(self, rank: int, *, dialled: bool, source: Address | None = None, bulk: bool = False) -> None:
        """A connection to a rank, which we have dialled, or which it has from `source`."""
        dial = Dial(rank, bulk, Path(0, location(rank))) if dialled else None
        number = 100 * bulk + rank
        address = location(rank).address if source is None else source[0]
        assert self.peers.up(rank, number, bulk=bulk, dialled=dial, local=0, address=address)
        if source is not None:
            self.remotes[number] = source

    def dials(self, now_s: float = 105.0) -> list[Dial]:
        return [action for action in self.peers.due(now_s) if isinstance(action, Dial)]

    def asked(self, by: int, rank: int, *, bulk: bool = False, now_s: float = 105.0) -> None:
        self.introductions.asked(by, rank, bulk=bulk, now_s=now_s)

    def tell(self, rank: int, message: Mapping[str, object], *, bulk: bool = False) -> None:
        self.introductions.told(0, rank, message, bulk=bulk, now_s=105.0)


def seen(rank: int, *, bulk: bool = False, address: Address = OUTSIDE) -> dict[str, object]:
    return {"op": "seen", "rank": rank, "bulk": bulk, "address": address[0], "port": address[1]}


HOME = ("203.0.113.9", 1000)


def test_both_hear_at_the_same_time_from_where_the_other_one_has_dialled():
    side = Side()
    side.up(6, dialled=False, source=HOME)
    side.asked(6, 5)
    assert side.sent == []  # nothing is known of 5 yet, and 6 would dial alone
    side.up(5, dialled=False, source=OUTSIDE)
    side.asked(6, 5)
    assert side.sent == [(6, seen(5)), (5, seen(6, address=HOME))]


def test_where_a_router_has_changed_that_since_the_new_address_is_said():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=True)
    side.remotes[5] = HOME
    side.asked(6, 5)
    assert side.sent == [(6, seen(5, address=HOME))]


@pytest.mark.parametrize("dialled", [True, False])
def test_nothing_is_said_of_who_can_be_dialled_where_it_says(dialled: bool):
    side = Side()
    side.up(6, dialled=True)
    side.up(5, dialled=dialled, source=None if dialled else OUTSIDE)
    if not dialled:
        side.remotes[5] = location(5).of(bulk=False)
    side.asked(6, 5)
    assert side.sent == []


def test_who_is_not_known_for_bulk_is_asked_to_dial_for_it_before_anybody_is_told():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=False, source=HOME)
    asked: list[Action] = []
    for rank in (5, 6):
        side.asked(6, 5, bulk=True)
        assert side.sent == []
        asked += [action for action in side.peers.due(105.0) if isinstance(action, AskForBulk)]
        side.up(rank, dialled=False, source=("203.0.113.7", 40_000 + rank), bulk=True)
    side.asked(6, 5, bulk=True)
    assert asked == [AskForBulk(5), AskForBulk(6)]
    told = [seen(rank, bulk=True, address=("203.0.113.7", 40_000 + rank)) for rank in (5, 6)]
    assert side.sent == [(6, told[0]), (5, told[1])]


def test_who_lacks_a_connection_asks_those_that_it_has_dialled_until_there_is_one():
    side = Side()
    for rank in (4, 6):
        side.up(rank, dialled=True)
    side.up(0, dialled=False, source=("203.0.113.9", 1000))  # perhaps nobody else can dial that one
    for rank in (1, 2):
        side.up(rank, dialled=False)
    assert side.introductions.tick(105.0) == 105.0 + ASK_S
    assert side.sent == []
    side.introductions.tick(105.0 + ASK_S)
    assert sorted(side.sent, key=lambda one: one[0]) == [
        (rank, {"op": "where", "rank": 5, "bulk": False}) for rank in (4, 6)
    ]
    side.up(5, dialled=False)
    assert side.introductions.tick(110.0) == float("inf")


def test_of_many_others_are_asked_each_time():
    side = Side(rank=0)
    for rank in range(1, SIZE - 1):
        side.up(rank, dialled=True)
    asked: set[int] = set()
    for number in range(3):
        side.sent.clear()
        side.introductions.tick(105.0 + number)
        assert len(side.sent) == (ASKED_MAX if number else 0)
        asked |= {to for to, _ in side.sent}
    assert asked == {1, 2, 3, 4, 5}


def test_a_rank_is_dialled_where_it_was_seen_too_at_each_address_once():
    side = Side()
    side.dials()
    for _ in range(2):
        side.tell(5, seen(5))
        assert [one.address for one in side.dials() if one.rank == 5][:1] in ([OUTSIDE], [])
    *others, told = [way.path for way in side.peers.peers[5].compute.ways]
    assert told.remote == location(5)
    assert [path.remote for path in others] == [Location(UNTOLD, OUTSIDE[0], OUTSIDE[1], OUTSIDE[1])]
    assert side.peers.tried(5) == "192.168.5.2, behind NAT at 203.0.113.7 port 40000"


def test_a_lying_rank_makes_us_dial_some_addresses_at_most():
    side = Side()
    for port in range(1, 100):
        side.tell(5, seen(5, address=(OUTSIDE[0], port)))
    ways = side.peers.peers[5].compute.ways
    assert len(ways) == 1 + SEEN_WAYS_MAX
    assert ways[-1].path.remote == location(5)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"address": OUTSIDE[0]},
        {"address": OUTSIDE[0], "port": 0},
        {"address": OUTSIDE[0], "port": 65_536},
        {"address": OUTSIDE[0], "port": "1"},
        {"address": OUTSIDE[0], "port": True},
        {"address": 7, "port": 1},
        {"address": "home", "port": 1},
        {"address": "1" * 2000, "port": 1},
        {"address": "224.0.0.1", "port": 1},
        {"address": "0.0.0.0", "port": 1},
        {"address": "::", "port": 1},
    ],
    ids=str,
)
def test_what_is_no_address_is_not_dialled(message: dict[str, object], caplog: pytest.LogCaptureFixture):
    side = Side()
    with caplog.at_level(logging.WARNING):
        side.tell(5, message)
    assert len(side.peers.peers[5].compute.ways) == 1
    assert "rank 0 says where rank 5 is" in caplog.text


def test_who_is_connected_or_no_peer_is_dialled_nowhere_else():
    side = Side()
    side.up(5, dialled=True)
    for rank, bulk in ((5, False), (5, True), (99, False), (3, False)):
        side.tell(rank, seen(rank, bulk=bulk), bulk=bulk)
    assert all(len(peer.compute.ways) == len(peer.bulk.ways) == 1 for peer in side.peers.peers.values())


def test_an_address_of_a_family_that_we_lack_is_not_dialled():
    side = Side()
    side.tell(5, seen(5, address=("2001:db8::7", 1)))
    assert len(side.peers.peers[5].compute.ways) == 1


def test_a_lost_rank_is_asked_for_at_once():
    side = Side(rank=0)
    for rank in range(1, SIZE):
        side.up(rank, dialled=True)
    assert side.introductions.tick(105.0) == float("inf")
    side.peers.down(5, reason="cut", now_s=105.1)
    side.introductions.tick(105.5)
    assert [message["rank"] for _, message in side.sent] == [5] * ASKED_MAX


def of_relays(side: Side) -> list[tuple[int, Mapping[str, object]]]:
    return [(to, message) for to, message in side.sent if message["op"] == "relay"]


def test_two_who_ask_for_each_other_again_and_again_are_told_of_a_way_through_this_rank():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=True)
    for number in range(RELAY_ASKED):
        assert of_relays(side) == []
        side.asked(*((5, 6) if number % 2 else (6, 5)), now_s=105.0 + number * ASK_S)
    (opened,) = side.opened
    ports = {"port": opened.compute_port, "bulk_port": opened.bulk_port}
    expected = [(5, {"op": "relay", "rank": 6, **ports}), (6, {"op": "relay", "rank": 5, **ports})]
    assert of_relays(side) == expected
    side.asked(5, 6, now_s=105.0 + RELAY_ASKED * ASK_S)
    assert of_relays(side) == 2 * expected, "it keeps its sockets"
    side.relays.close()


@pytest.mark.parametrize("how", ["seldom", "as they told", "of itself", "from one address"])
def test_nothing_is_relayed(how: str):
    side = Side()
    side.up(5, dialled=how == "as they told", source=None if how == "as they told" else OUTSIDE)
    side.up(6, dialled=how != "from one address", source=OUTSIDE if how == "from one address" else None)
    for number in range(3 * RELAY_ASKED):
        side.asked(5, 5 if how == "of itself" else 6, now_s=105.0 + number * ASK_S * (3 if how == "seldom" else 1))
    assert of_relays(side) == [] == side.opened


def test_a_relayed_rank_is_dialled_at_the_relay_s_address_for_compute_and_for_bulk():
    side = Side()
    side.up(0, dialled=True)
    side.introductions.relayed(0, 5, {"port": 41, "bulk_port": 42}, now_s=105.0)
    found = side.peers.peers[5]
    assert found.compute.ways[0].path.remote.of(bulk=False) == (location(0).address, 41)
    assert found.bulk.ways[0].path.remote.of(bulk=True) == (location(0).address, 42)


@pytest.mark.parametrize(
    "ports", [{}, {"port": 41}, {"port": 0, "bulk_port": 42}, {"port": 41, "bulk_port": "x"}], ids=str
)
def test_a_relay_without_ports_is_not_dialled(ports: dict[str, object], caplog: pytest.LogCaptureFixture):
    side = Side()
    side.up(0, dialled=True)
    with caplog.at_level(logging.WARNING):
        side.introductions.relayed(0, 5, ports, now_s=105.0)
    assert len(side.peers.peers[5].compute.ways) == 1
    assert "rank 0 says that it relays to rank 5" in caplog.text
