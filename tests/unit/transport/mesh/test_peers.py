"""Who dials whom and when a peer is gone, with a clock that the test moves."""

from __future__ import annotations

import pytest

from transport.mesh.peers import BACK_OFF_S_MAX, DIAL_OTHER_S, Contact, Dial, Gone, PeerTable, Phase


def table(rank: int, size: int = 3, reconnect_s: float = 2.0) -> PeerTable:
    contacts = [
        Contact(r, f"node-{r}", ("10.0.0.1", 5000 + r), ("10.0.0.1", 6000 + r)) for r in range(size) if r != rank
    ]
    return PeerTable(rank, contacts, reconnect_s=reconnect_s, now_s=100.0)


def test_the_smaller_rank_dials_at_once_and_the_larger_one_a_second_later():
    peers = table(1)
    assert peers.due(100.0) == [Dial(2, False)]
    assert peers.due(100.0 + DIAL_OTHER_S / 2) == []
    assert peers.due(100.0 + DIAL_OTHER_S) == [Dial(0, False)]


def test_who_was_dialled_does_not_dial():
    peers = table(2)
    assert peers.up(0, 7, bulk=False, dialled=False)
    assert peers.due(102.0) == [Dial(1, False)]
    assert peers.missing() == [1]


def test_attempts_back_off_to_a_limit():
    peers = table(0, size=2)
    waits = []
    now_s = 100.0
    for _ in range(7):
        assert peers.due(now_s) == [Dial(1, False)]
        peers.dial_failed(1, bulk=False, now_s=now_s)
        waits.append(round(peers.next_wake_s() - now_s, 3))
        now_s = peers.next_wake_s()
    assert waits == [0.1, 0.2, 0.4, 0.8, BACK_OFF_S_MAX, BACK_OFF_S_MAX, BACK_OFF_S_MAX]


def test_of_two_connections_both_sides_send_over_the_one_that_the_smaller_rank_dialled():
    small, large = table(0, size=2), table(1, size=2)
    for connection, small_dialled in ((1, False), (2, True)):
        small.up(1, connection, bulk=False, dialled=small_dialled)
        large.up(0, connection, bulk=False, dialled=not small_dialled)
    assert small.route(1, bulk=False) == large.route(0, bulk=False) == 2
    small.down(2, reason="x", now_s=101.0)
    assert small.route(1, bulk=False) == 1
    assert small.peers[1].phase is Phase.UP


def test_a_lost_connection_is_dialled_again_at_once_and_the_peer_is_dead_when_it_does_not_come_back():
    peers = table(0, size=2)
    peers.due(100.0)
    peers.up(1, 5, bulk=False, dialled=True)
    assert peers.down(5, reason="no acknowledgement for 5 s", now_s=110.0) == 1
    assert peers.due(110.0) == [Dial(1, False)]
    peers.dial_failed(1, bulk=False, now_s=110.1)
    assert peers.next_wake_s() == pytest.approx(110.2)
    assert [type(action) for action in peers.due(111.0)] == [Dial]
    (gone,) = peers.due(112.0)
    assert isinstance(gone, Gone)
    assert (gone.error.rank, peers.peers[1].phase) == (1, Phase.DEAD)
    assert "no acknowledgement for 5 s; not back after 2 s" in str(gone.error)
    assert peers.due(200.0) == []
    assert peers.next_wake_s() == float("inf")


def test_connections_that_carry_nothing_are_not_dialled_without_end():
    peers = table(0, size=2)
    now_s, dials = 100.0, 0
    while now_s < 110.0:
        if peers.due(now_s):
            dials += 1
            peers.up(1, dials, bulk=False, dialled=True)
            peers.down(dials, reason="refused", now_s=now_s)
        now_s += 0.001
    assert dials <= 16
    peers.up(1, 99, bulk=False, dialled=True)
    peers.delivered(1, bulk=False)
    peers.down(99, reason="x", now_s=200.0)
    assert peers.next_wake_s() == 200.0


def test_a_peer_that_counts_us_as_gone_is_not_dialled_again():
    peers = table(0, size=2)
    peers.up(1, 5, bulk=False, dialled=True)
    peers.down(5, reason="x", now_s=110.0)
    assert peers.evicted(1, "it counts this rank as gone") is not None
    assert peers.evicted(1, "again") is None
    assert peers.due(111.0) == []
    assert peers.next_wake_s() == float("inf")
    assert peers.peers[1].phase is Phase.EVICTED
    assert "counts this rank as gone" in str(peers.error(1))


def test_a_peer_that_comes_back_in_time_lives_on():
    peers = table(0, size=2)
    peers.up(1, 5, bulk=False, dialled=True)
    peers.down(5, reason="x", now_s=110.0)
    assert peers.up(1, 6, bulk=False, dialled=False)
    assert peers.due(130.0) == []
    assert (peers.route(1, bulk=False), peers.error(1)) == (6, None)


def test_the_dead_and_those_who_left_are_not_let_in_again():
    peers = table(0)
    peers.up(1, 5, bulk=False, dialled=True)
    peers.up(2, 6, bulk=False, dialled=True)
    assert peers.left(1) is not None
    assert peers.left(1) is None
    assert peers.dead(2, "said rank 1") is not None
    assert not peers.up(1, 7, bulk=False, dialled=False)
    assert (peers.peers[1].phase, peers.peers[2].phase) == (Phase.LEFT, Phase.DEAD)
    assert "has left" in str(peers.error(1))


def test_bulk_is_dialled_when_it_is_first_wanted_and_its_loss_is_no_death():
    peers = table(0, size=2)
    peers.up(1, 5, bulk=False, dialled=True)
    assert peers.due(101.0) == []
    peers.want_bulk(1)
    assert peers.due(101.0) == [Dial(1, True)]
    assert peers.address(1, bulk=True) == ("10.0.0.1", 6001)
    peers.up(1, 9, bulk=True, dialled=True)
    assert (peers.route(1, bulk=True), peers.route(1, bulk=False)) == (9, 5)
    peers.down(9, reason="x", now_s=102.0)
    assert peers.peers[1].phase is Phase.UP
    assert peers.due(102.0) == [Dial(1, True)]


def test_the_end_of_an_unknown_connection_is_nothing():
    assert table(0).down(99, reason="x", now_s=101.0) is None
    assert table(0).rank_of(99) is None


def test_who_moved_is_dialled_where_it_is_and_its_old_connections_are_named():
    peers = table(0)
    peers.up(1, 7, bulk=False, dialled=True)
    peers.up(1, 8, bulk=True, dialled=True)
    peers.up(1, 9, bulk=False, dialled=False)  # it dialled this one, from where it is now
    there, bulk_there = ("10.0.0.9", 5001), ("10.0.0.9", 6001)
    assert peers.moved(1, number=1, address=there, bulk_address=bulk_there) == [7, 8]
    assert peers.address(1, bulk=False) == there
    assert peers.address(1, bulk=True) == bulk_there
    assert peers.moved(1, number=1, address=("10.0.0.1", 5001), bulk_address=("10.0.0.1", 6001)) == []
    assert peers.address(1, bulk=False) == there, "an earlier move that was told again"


def test_a_rank_that_moved_dials_at_once_whom_it_has_lost_by_that():
    peers = table(2)
    peers.up(0, 5, bulk=False, dialled=False)
    for now_s in (101.0, 102.0):
        for rank in (0, 1):
            peers.dial_failed(rank, bulk=False, now_s=now_s)
    assert peers.moved_here(102.05, old="10.0.0.3", new="10.0.0.4") == []
    assert peers.due(102.05) == [Dial(1, False)]
    assert peers.down(5, reason="moved", now_s=102.1) == 0
    assert Dial(0, False) in peers.due(102.1)


def test_ranks_of_one_host_move_together_and_dial_each_other_where_they_are_then():
    peers = table(1)
    peers.up(0, 5, bulk=False, dialled=False)
    peers.up(2, 6, bulk=False, dialled=True)
    assert peers.moved_here(101.0, old="10.0.0.1", new="10.0.0.9") == [5, 6]
    assert peers.address(2, bulk=False) == ("10.0.0.9", 5002)
    assert peers.address(0, bulk=True) == ("10.0.0.9", 6000)
