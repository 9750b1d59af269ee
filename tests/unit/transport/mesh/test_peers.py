"""Who dials whom and when a peer is gone, with a clock that the test moves."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from transport.mesh.paths import Location, Path
from transport.mesh.peers import (
    BACK_OFF_S_MAX,
    DIAL_OTHER_S,
    SPARE_AGAIN_S,
    STAGGER_S,
    Action,
    AskForBulk,
    Contact,
    Dial,
    Gone,
    PeerTable,
    Phase,
)


def location(rank: int, address: str = "10.0.0.1") -> Location:
    return Location(0, address, 5000 + rank, 6000 + rank)


def table(rank: int, size: int = 3, reconnect_s: float = 2.0, own: str = "10.0.0.1") -> PeerTable:
    contacts = [Contact(r, f"node-{r}", (location(r),)) for r in range(size) if r != rank]
    return PeerTable(rank, [location(rank, own)], contacts, reconnect_s=reconnect_s, now_s=100.0)


def dial(rank: int, bulk: bool = False) -> Dial:
    return Dial(rank, bulk, Path(0, location(rank)))


def up(peers: PeerTable, rank: int, connection: int, *, bulk: bool = False, dialled: bool) -> bool:
    asked = dial(rank, bulk) if dialled else None
    return peers.up(rank, connection, bulk=bulk, dialled=asked, local=0, address="10.0.0.1")


def test_the_smaller_rank_dials_at_once_and_the_larger_one_a_second_later():
    peers = table(1)
    assert peers.due(100.0) == [dial(2, False)]
    assert peers.due(100.0 + DIAL_OTHER_S / 2) == []
    assert peers.due(100.0 + DIAL_OTHER_S) == [dial(0, False)]


def test_who_was_dialled_does_not_dial():
    peers = table(2)
    assert up(peers, 0, 7, bulk=False, dialled=False)
    assert peers.due(102.0) == [dial(1, False)]
    assert peers.missing() == [1]


def test_attempts_back_off_to_a_limit():
    peers = table(0, size=2)
    waits = []
    now_s = 100.0
    for _ in range(7):
        assert peers.due(now_s) == [dial(1, False)]
        peers.dial_failed(dial(1), now_s=now_s)
        waits.append(round(peers.next_wake_s() - now_s, 3))
        now_s = peers.next_wake_s()
    assert waits == [0.1, 0.2, 0.4, 0.8, BACK_OFF_S_MAX, BACK_OFF_S_MAX, BACK_OFF_S_MAX]


def test_of_two_connections_both_sides_send_over_the_one_that_the_smaller_rank_dialled():
    small, large = table(0, size=2), table(1, size=2)
    for connection, small_dialled in ((1, False), (2, True)):
        up(small, 1, connection, bulk=False, dialled=small_dialled)
        up(large, 0, connection, bulk=False, dialled=not small_dialled)
    assert small.route(1, bulk=False) == large.route(0, bulk=False) == 2
    small.down(2, reason="x", now_s=101.0)
    assert small.route(1, bulk=False) == 1
    assert small.peers[1].phase is Phase.UP


def test_a_caller_may_ask_where_a_peer_is_while_its_connections_come_and_go():
    """What a collective will send is announced in its caller's thread, and who reconnects meanwhile does not end it."""
    peers, over, found = table(0, size=2), threading.Event(), set()

    def ask() -> None:
        while not over.is_set():
            found.add(peers.address(1))

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                for connection in range(1, 20_000):
                    up(peers, 1, connection, dialled=True)
                    peers.down(connection, reason="x", now_s=101.0)
            finally:
                over.set()
            asking.result(30)
    finally:
        sys.setswitchinterval(switch_s)
    assert found == {"10.0.0.1"}


def test_a_lost_connection_is_dialled_again_at_once_and_the_peer_is_dead_when_it_does_not_come_back():
    peers = table(0, size=2)
    peers.due(100.0)
    up(peers, 1, 5, bulk=False, dialled=True)
    assert peers.down(5, reason="no acknowledgement for 5 s", now_s=110.0) == 1
    assert peers.due(110.0) == [dial(1, False)]
    peers.dial_failed(dial(1), now_s=110.1)
    assert peers.next_wake_s() == pytest.approx(110.2)
    assert [type(action) for action in peers.due(111.0)] == [Dial]
    (gone,) = peers.due(112.0)
    assert isinstance(gone, Gone)
    assert (gone.error.rank, peers.peers[1].phase) == (1, Phase.DEAD)
    assert "no acknowledgement for 5 s; not back after 2 s" in str(gone.error)
    assert peers.due(200.0) == []
    assert peers.next_wake_s() == float("inf")


def test_a_lost_peer_gets_new_first_packets_while_an_attempt_is_under_way() -> None:
    peers = table(0, size=2)
    peers.due(100.0)
    up(peers, 1, 5, dialled=True)
    peers.down(5, reason="silent", now_s=110.0)
    asked = []
    while peers.peers[1].phase is Phase.LOST:
        asked += [peers.next_wake_s()] * peers.due(peers.next_wake_s()).count(dial(1))
    assert asked == pytest.approx([110.0, 110.4, 110.8, 111.2, 111.6])


def test_of_several_attempts_of_ours_the_first_that_comes_through_is_kept() -> None:
    peers = table(0, size=2)
    assert up(peers, 1, 5, dialled=False)
    assert up(peers, 1, 6, dialled=True), "the other side may not hear what it dialled itself"
    assert not up(peers, 1, 7, dialled=True)
    assert peers.connections(1) == [5, 6]
    assert up(peers, 1, 8, bulk=True, dialled=True)
    peers.down(6, reason="silent", now_s=110.0)
    assert up(peers, 1, 9, dialled=True)


def test_a_peer_whose_process_has_ended_is_dead_with_its_last_connection_and_not_waited_for():
    peers = table(0, size=2)
    for connection, bulk, dialled in ((5, False, True), (6, False, False), (7, True, True)):
        up(peers, 1, connection, bulk=bulk, dialled=dialled)
    ended = "its process has ended"
    assert peers.down(7, reason=ended, gone=True, now_s=110.0) == 1
    assert peers.down(5, reason=ended, gone=True, now_s=110.0) is None
    assert not any(isinstance(action, Gone) for action in peers.due(110.0))
    assert peers.down(6, reason=ended, gone=True, now_s=110.1) == 1
    assert peers.next_wake_s() == 110.1
    (gone,) = peers.due(110.1)
    assert isinstance(gone, Gone)
    assert str(gone.error).endswith(ended)


def test_connections_that_carry_nothing_are_not_dialled_without_end():
    peers = table(0, size=2)
    now_s, dials = 100.0, 0
    while now_s < 110.0:
        if peers.due(now_s):
            dials += 1
            up(peers, 1, dials, bulk=False, dialled=True)
            peers.down(dials, reason="refused", now_s=now_s)
        now_s += 0.001
    assert dials <= 16
    up(peers, 1, 99, bulk=False, dialled=True)
    peers.delivered(1, bulk=False)
    peers.down(99, reason="x", now_s=200.0)
    assert peers.next_wake_s() == 200.0


def test_a_peer_that_counts_us_as_gone_is_not_dialled_again():
    peers = table(0, size=2)
    up(peers, 1, 5, bulk=False, dialled=True)
    peers.down(5, reason="x", now_s=110.0)
    assert peers.evicted(1, "it counts this rank as gone") is not None
    assert peers.evicted(1, "again") is None
    assert peers.due(111.0) == []
    assert peers.next_wake_s() == float("inf")
    assert peers.peers[1].phase is Phase.EVICTED
    assert "counts this rank as gone" in str(peers.error(1))


def test_a_peer_that_comes_back_in_time_lives_on():
    peers = table(0, size=2)
    up(peers, 1, 5, bulk=False, dialled=True)
    peers.down(5, reason="x", now_s=110.0)
    assert up(peers, 1, 6, bulk=False, dialled=False)
    assert peers.due(130.0) == []
    assert (peers.route(1, bulk=False), peers.error(1)) == (6, None)


def test_the_dead_and_those_who_left_are_not_let_in_again():
    peers = table(0)
    up(peers, 1, 5, bulk=False, dialled=True)
    up(peers, 2, 6, bulk=False, dialled=True)
    assert peers.left(1) is not None
    assert peers.left(1) is None
    assert peers.dead(2, "said rank 1") is not None
    assert not up(peers, 1, 7, bulk=False, dialled=False)
    assert (peers.peers[1].phase, peers.peers[2].phase) == (Phase.LEFT, Phase.DEAD)
    assert "has left" in str(peers.error(1))


def test_bulk_is_dialled_when_it_is_first_wanted_and_its_loss_is_no_death():
    peers = table(0, size=2)
    up(peers, 1, 5, bulk=False, dialled=True)
    assert peers.due(101.0) == []
    peers.want_bulk(1)
    assert peers.due(101.0) == [AskForBulk(1), dial(1, True)]
    assert dial(1, True).address == ("10.0.0.1", 6001)
    up(peers, 1, 9, bulk=True, dialled=True)
    assert (peers.route(1, bulk=True), peers.route(1, bulk=False)) == (9, 5)
    peers.down(9, reason="x", now_s=102.0)
    assert peers.peers[1].phase is Phase.UP
    assert peers.due(102.0) == [dial(1, True)]


def test_who_is_asked_for_bulk_dials_where_the_other_does_not_come_and_asks_nobody():
    behind_nat, reachable = table(0, size=2), table(1, size=2)
    up(behind_nat, 1, 5, bulk=False, dialled=True)
    up(reachable, 0, 5, bulk=False, dialled=False)
    reachable.want_bulk(0)
    assert AskForBulk(0) in reachable.due(101.0)
    assert AskForBulk(0) not in reachable.due(102.0)
    for _ in range(2):  # it may be told twice
        behind_nat.asked_for_bulk(1, 101.0)
    assert behind_nat.due(101.0) == []
    assert behind_nat.next_wake_s() == 101.0 + DIAL_OTHER_S
    assert behind_nat.due(101.0 + DIAL_OTHER_S) == [dial(1, True)]


def test_the_end_of_an_unknown_connection_is_nothing():
    assert table(0).down(99, reason="x", now_s=101.0) is None
    assert table(0).rank_of(99) is None


def test_who_moved_is_dialled_where_it_is_and_its_old_connections_are_named():
    peers = table(0)
    up(peers, 1, 7, bulk=False, dialled=True)
    up(peers, 1, 8, bulk=True, dialled=True)
    up(peers, 1, 9, bulk=False, dialled=False)  # it dialled this one, from where it is now
    there = location(1, "10.0.0.9")
    assert peers.moved(1, number=1, locations=(there,), now_s=101.0) == [7, 8]
    assert peers.moved(1, number=1, locations=(location(1),), now_s=101.0) == [], "told again"
    for connection in (7, 8, 9):
        peers.down(connection, reason="x", now_s=101.0)
    assert [one.path.remote for one in peers.due(101.0) if isinstance(one, Dial) and one.rank == 1] == [there, there]


def test_a_rank_that_moved_dials_at_once_whom_it_has_lost_by_that():
    peers = table(2, own="10.0.0.3")
    up(peers, 0, 5, bulk=False, dialled=False)
    for now_s in (101.0, 102.0):
        for rank in (0, 1):
            peers.dial_failed(dial(rank), now_s=now_s)
    assert peers.moved_here(102.05, new=location(2, "10.0.0.4")) == []
    assert peers.due(102.05) == [dial(1, False)]
    assert peers.down(5, reason="moved", now_s=102.1) == 0
    assert dial(0, False) in peers.due(102.1)


def test_ranks_of_one_host_move_together_and_dial_each_other_where_they_are_then():
    peers = table(1)
    up(peers, 0, 5, bulk=False, dialled=False)
    up(peers, 2, 6, bulk=False, dialled=True)
    assert peers.moved_here(101.0, new=location(1, "10.0.0.9")) == [5, 6]
    assert [one.locations[0].address for one in peers.peers.values()] == ["10.0.0.9", "10.0.0.9"]


def several(rank: int) -> PeerTable:
    """Two ranks with two interfaces, and an IPv6 address on the first."""

    def rank_at(host: int) -> tuple[Location, ...]:
        return (
            Location(0, f"10.0.1.{host}", 5000, 6000),
            Location(0, f"fd00::{host}", 5000, 6000),
            Location(1, f"10.0.2.{host}", 5000, 6000),
        )

    other = 1 - rank
    contact = Contact(other, f"node-{other}", rank_at(other + 1))
    return PeerTable(rank, rank_at(rank + 1), [contact], reconnect_s=2.0, now_s=100.0)


def asked(actions: list[Action]) -> list[str]:
    return [one.address[0] for one in actions if isinstance(one, Dial)]


def test_addresses_are_dialled_a_quarter_of_a_second_apart() -> None:
    peers = several(0)
    assert asked(peers.due(100.0)) == ["10.0.1.2"]
    assert peers.next_wake_s() == pytest.approx(100.0 + STAGGER_S)
    assert peers.due(100.0 + STAGGER_S - 0.01) == []
    assert asked(peers.due(100.0 + STAGGER_S)) == ["fd00::2"]
    assert asked(peers.due(100.0 + 2 * STAGGER_S)) == ["10.0.2.2"]


def test_a_host_that_went_on_from_its_second_interface_and_comes_back_has_two_again() -> None:
    peers = several(0)
    first, _, second = peers.own
    peers.moved_here(101.0, new=replace(first, address=second.address))
    assert [one.interface for one in peers.own] == [1, 0, 1]
    peers.moved_here(102.0, new=replace(peers.own[0], address=first.address))
    assert [one.interface for one in peers.own] == [0, 0, 1]


def test_the_next_address_does_not_wait_for_one_that_has_failed() -> None:
    peers = several(0)
    (first,) = peers.due(100.0)
    assert isinstance(first, Dial)
    peers.dial_failed(first, now_s=100.01)
    assert asked(peers.due(100.01)) == ["fd00::2"]
    assert asked(peers.due(100.01 + STAGGER_S)) == ["10.0.1.2", "10.0.2.2"], "and the first one again"


def connected(peers: PeerTable, connection: int, now_s: float) -> Dial:
    """The next dial succeeds."""
    (dialled,) = peers.due(now_s)
    assert isinstance(dialled, Dial)
    assert peers.up(
        dialled.rank,
        connection,
        bulk=dialled.bulk,
        dialled=dialled,
        local=dialled.path.local,
        address=dialled.address[0],
    )
    return dialled


def test_every_link_gets_a_connection_from_the_smaller_rank_and_no_link_two() -> None:
    peers = several(0)
    first, second = connected(peers, 5, 100.0), connected(peers, 6, 101.0)
    assert (first.address[0], second.address[0]) == ("10.0.1.2", "10.0.2.2")
    assert (peers.due(200.0), peers.routes(1, bulk=False)) == ([], (5, 6))
    large = several(1)
    assert large.up(0, 5, bulk=False, dialled=None, local=0, address="10.0.1.1")
    assert large.due(200.0) == []


def test_a_lost_link_leaves_the_peer_connected_and_is_dialled_again_later_and_later() -> None:
    peers = several(0)
    connected(peers, 5, 100.0), connected(peers, 6, 101.0)
    now_s = 200.0
    for rest_s in (SPARE_AGAIN_S, 2 * SPARE_AGAIN_S, 4 * SPARE_AGAIN_S):
        (lost,) = set(peers.routes(1, bulk=False)) - {5}
        assert peers.down(lost, reason="silent", now_s=now_s) is None
        assert (peers.peers[1].phase, peers.routes(1, bulk=False)) == (Phase.UP, (5,))
        assert peers.due(now_s + rest_s - 0.1) == []
        now_s += rest_s
        assert connected(peers, lost + 1, now_s).address[0] == "10.0.2.2"


def test_a_further_link_that_cannot_be_reached_keeps_none_of_the_others_waiting() -> None:
    """Two addresses of the second interface; the first of them leads nowhere."""
    here, there = [
        tuple(Location(at, f"10.{side}.{at}.{place}", 5000, 6000) for at, place in ((0, 1), (1, 1), (1, 2)))
        for side in (1, 2)
    ]
    peers = PeerTable(0, here, [Contact(1, "node-1", there)], reconnect_s=2.0, now_s=100.0)
    connected(peers, 5, 100.0)
    now_s, rests = 101.0, []
    (nowhere,) = peers.due(now_s)
    for _ in range(7):
        assert isinstance(nowhere, Dial)
        now_s += 10.0
        peers.dial_failed(nowhere, now_s=now_s)
        (other,) = peers.due(now_s)
        assert isinstance(other, Dial)
        assert other.path != nowhere.path
        nowhere = other
        rests.append(other.address[0])
    assert len(set(rests)) == 2, "all of its addresses are tried"


def test_many_attempts_that_fail_or_are_not_needed_count_once_against_a_link() -> None:
    peers = several(0)
    first = connected(peers, 5, 100.0)
    second = connected(peers, 6, 101.0)
    peers.down(5, reason="cut", now_s=200.0)
    peers.down(6, reason="cut", now_s=200.0)
    for tenths in range(10):
        peers.due(200.0 + tenths / 10)
    local, address = first.path.local, first.address[0]
    assert peers.up(1, 7, bulk=False, dialled=first, local=local, address=address)
    assert peers.up(1, 8, bulk=False, dialled=None, local=local, address=address)
    peers.down(8, reason="there is another one by now", now_s=201.0)
    for _ in range(5):
        peers.dial_failed(second, now_s=210.0)
    assert [type(one) for one in peers.due(210.0 + SPARE_AGAIN_S)] == [Dial]


def test_when_the_last_link_is_lost_every_address_is_dialled_again() -> None:
    peers = several(0)
    connected(peers, 5, 100.0), connected(peers, 6, 101.0)
    peers.down(6, reason="silent", now_s=200.0)
    assert peers.down(5, reason="silent", now_s=200.1) == 1
    assert asked(peers.due(200.1 + 2 * STAGGER_S)) == ["10.0.1.2", "fd00::2", "10.0.2.2"]


def test_bulk_goes_where_gradients_go() -> None:
    peers = several(0)
    (first,) = peers.due(100.0)
    (second,) = peers.due(100.0 + STAGGER_S)
    assert isinstance(first, Dial)
    assert isinstance(second, Dial)
    peers.dial_failed(first, now_s=100.3)
    (third,) = peers.due(100.3)
    assert isinstance(third, Dial)
    assert peers.up(1, 7, bulk=False, dialled=third, local=2, address="10.0.2.2")
    peers.want_bulk(1)
    assert [one.address for one in peers.due(101.0) if isinstance(one, Dial) and one.bulk] == [("10.0.2.2", 6000)]


def test_a_peer_whose_links_are_all_in_use_is_asked_for_no_more() -> None:
    peers = several(0)
    connected(peers, 5, 100.0), connected(peers, 6, 101.0)
    assert peers.next_wake_s() == float("inf")
    assert peers.routes(1, bulk=False) == (5, 6)
    peers.down(5, reason="x", now_s=200.0)
    assert peers.routes(1, bulk=False) == (6,)
    assert peers.next_wake_s() == pytest.approx(200.0 + SPARE_AGAIN_S)
