"""Ranks that cannot be dialled where they say ask others from where these are dialled, and dial them there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest
from memory_engine import statistics

from transport.engine.base import Address
from transport.mesh.introductions import ANSWERED_MAX, ASK_S, ASKED_MAX, TOLD_MAX, Introductions
from transport.mesh.paths import Location, Path
from transport.mesh.peers import SEEN_WAYS_MAX, UNTOLD, Action, AskForBulk, Contact, Dial, PeerTable

SIZE = 7
OUTSIDE = ("203.0.113.7", 40_000)


def location(rank: int) -> Location:
    return Location(0, f"192.168.{rank}.2", 5000, 6000)


class Side:
    """Rank 3 of seven, with what it has sent."""

    def __init__(self, rank: int = 3) -> None:
        self.rank = rank
        contacts = [Contact(other, f"node-{other}", (location(other),)) for other in range(SIZE) if other != rank]
        self.peers = PeerTable(rank, [location(rank)], contacts, reconnect_s=2.0, now_s=100.0)
        self.sent: list[tuple[int, Mapping[str, object]]] = []
        self.remotes: dict[int, Address] = {}
        self.introductions = Introductions(
            self.peers,
            lambda to, message: self.sent.append((to, message)),
            lambda: {number: statistics(remote=remote) for number, remote in self.remotes.items()},
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

    def asked(self, by: int, rank: int, *, bulk: bool = False) -> None:
        self.introductions.asked(by, rank, bulk=bulk)

    def tell(self, rank: int, message: Mapping[str, object], *, bulk: bool = False) -> None:
        if not self.peers.reached():
            self.up(0, dialled=True)
        self.introductions.told(0, rank, message, bulk=bulk, now_s=105.0)


def seen(rank: int, *, bulk: bool = False, address: Address = OUTSIDE) -> dict[str, object]:
    return {"op": "seen", "rank": rank, "bulk": bulk, "address": address[0], "port": address[1]}


HOME = ("203.0.113.9", 1000)


def test_both_hear_at_the_same_time_from_where_the_other_one_has_dialled():
    side = Side()
    side.up(6, dialled=False, source=HOME)
    side.asked(6, 5, bulk=False)
    assert side.sent == []  # nothing is known of 5 yet, and 6 would dial alone
    side.up(5, dialled=False, source=OUTSIDE)
    side.asked(6, 5, bulk=False)
    assert side.sent == [(6, seen(5)), (5, seen(6, address=HOME))]


def test_nobody_hears_before_it_is_known_from_where_both_have_dialled():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=False, source=HOME)
    del side.remotes[6]  # statistics are read ten times a second
    side.asked(5, 6)
    assert side.sent == []


def test_where_a_router_has_changed_that_since_the_new_address_is_said():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=True)
    side.remotes[5] = HOME
    side.asked(6, 5, bulk=False)
    assert side.sent == [(6, seen(5, address=HOME))]


@pytest.mark.parametrize("dialled", [True, False])
def test_nothing_is_said_of_who_can_be_dialled_where_it_says(dialled: bool):
    side = Side()
    side.up(6, dialled=True)
    side.up(5, dialled=dialled, source=None if dialled else OUTSIDE)
    if not dialled:
        side.remotes[5] = location(5).of(bulk=False)
    side.asked(6, 5, bulk=False)
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
    dialled: set[Address] = set()
    for look in range(10):
        side.introductions.tick(105.0 + look)
        for port in range(1, 100):
            side.tell(5, seen(5, address=(OUTSIDE[0], 100 * look + port)))
            dialled |= {one.address for one in side.dials() if one.rank == 5 and one.address[0] == OUTSIDE[0]}
    assert len(dialled) == 10 * TOLD_MAX
    ways = side.peers.peers[5].compute.ways
    assert len(ways) == SEEN_WAYS_MAX + 1
    assert ways[-1].path.remote == location(5)


def test_a_rank_that_asks_all_the_time_is_answered_now_and_then():
    side = Side()
    side.up(5, dialled=False, source=OUTSIDE)
    side.up(6, dialled=True)
    for look in range(3):
        side.introductions.tick(105.0 + look)
        for _ in range(1000):
            side.asked(6, 5)
    assert [message["op"] for _, message in side.sent].count("seen") == 3 * ANSWERED_MAX


def test_who_is_not_reached_where_it_says_is_no_judge_of_where_others_are():
    side = Side()
    side.up(0, dialled=False, source=HOME)
    side.introductions.told(0, 5, seen(5), bulk=False, now_s=105.0)
    side.introductions.tick(105.0)
    assert len(side.peers.peers[5].compute.ways) == 1
    assert side.peers.reached() == []


def test_those_far_away_are_asked_first():
    side = Side(rank=0)
    for rank in range(1, SIZE - 1):
        side.up(rank, dialled=True)
    (found,) = side.peers.peers[5].compute.connections.items()
    side.peers.peers[5].compute.connections[found[0]] = replace(found[1], address="8.8.4.4")
    for now_s in (105.0, 106.0, 107.0):
        side.introductions.tick(now_s)
    asked = [to for to, _ in side.sent]
    assert asked[0] == 5
    assert set(asked[: ASKED_MAX + 1]) == {1, 2, 3, 4, 5}


def test_a_way_that_others_have_seen_is_no_further_link():
    contacts = [Contact(1, "node-1", (location(1),))]
    own = [location(0), Location(1, "192.168.9.2", 5000, 6000)]
    peers = PeerTable(0, own, contacts, reconnect_s=2.0, now_s=100.0)
    peers.seen_at(1, OUTSIDE, bulk=False, now_s=100.0)
    peers.up(1, 7, bulk=False, dialled=Dial(1, False, Path(0, location(1))), local=0, address=location(1).address)
    dialled = [action.address for now_s in range(100, 200) for action in peers.due(now_s) if isinstance(action, Dial)]
    assert dialled
    assert OUTSIDE not in dialled


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
