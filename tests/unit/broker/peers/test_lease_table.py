"""Leases that others have of us: whose they are, when they end, and what is stale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.model.leases import LEASE_S_MAX
from broker.model.reasons import Reason
from broker.peers.protocol.lease_table import (
    PEERS_MAX,
    SOON_AT_ONCE,
    SOON_OF_ALL_AT_ONCE,
    SOON_OF_ALL_PER_S,
    SOON_PER_S,
    LeaseTable,
)
from broker.peers.protocol.wire import Ask, Refusal, Release

RUN, LATER_RUN = b"r" * 16, b"s" * 16
ASK = Ask(1, "storage", 10_000_000, 100_000_000, 1.0, Reason("burst", "a burst comes"))


@pytest.fixture
def book() -> LeaseTable:
    book = LeaseTable()
    book.met("a", "10.0.0.1", run=RUN)
    return book


def ask(book: LeaseTable, number: int, *, now_s: float = 0.0, run: bytes = RUN, **change: object) -> Refusal | None:
    return book.ask("a", "10.0.0.1", replace(ASK, number=number, **change), run=run, now_s=now_s)


def test_an_ask_is_a_lease_until_its_time_is_over(book: LeaseTable) -> None:
    assert ask(book, 1) is None
    (lease,) = book.leases(now_s=0.4)
    assert (lease.peer, lease.address, lease.number, lease.rate_bits_per_s) == ("a", "10.0.0.1", 1, 10_000_000)
    assert (lease.age_s, lease.remaining_s) == (0.4, pytest.approx(0.6))
    assert book.leases(now_s=1.0) == ()


def test_a_renewal_extends_the_lease_and_is_no_change(book: LeaseTable) -> None:
    ask(book, 1)
    book.changed = False
    assert ask(book, 2, now_s=0.5) is None
    assert not book.changed
    (lease,) = book.leases(now_s=1.2)
    assert (lease.number, lease.age_s, lease.remaining_s) == (2, 1.2, pytest.approx(0.3))


def test_a_new_rate_a_release_and_an_end_are_changes(book: LeaseTable) -> None:
    for step in (
        lambda: ask(book, 1),
        lambda: ask(book, 2, rate_bits_per_s=5_000_000),
        lambda: ask(book, 3, capacity_bits_per_s=50_000_000, rate_bits_per_s=5_000_000),
        lambda: book.release("a", "10.0.0.1", Release(4, "storage"), run=RUN, now_s=0.0),
        lambda: ask(book, 5),
        lambda: book.expire(now_s=3.0),
        lambda: ask(book, 6, now_s=4.0),
        lambda: book.forget("a", "10.0.0.1", now_s=4.0),
    ):
        book.changed = False
        step()
        assert book.changed


def decisions(*peers: str) -> int:
    """How often it is worth a decision at once that these peers change their rate 50 times a second for ten seconds."""
    book, count = LeaseTable(), 0
    for peer in peers:
        book.met(peer, "10.0.0.1", run=RUN)
    for number in range(1, 501):
        for place, peer in enumerate(peers):
            now_s = number / 50 + place / 5000
            changed = replace(ASK, number=number, rate_bits_per_s=number)
            assert book.ask(peer, "10.0.0.1", changed, run=RUN, now_s=now_s) is None
            count += book.changed
            assert any(lease.rate_bits_per_s == number for lease in book.leases(now_s=now_s))
            book.changed = False
    return count


def test_peers_that_change_their_minds_all_day_do_not_make_us_decide_all_day() -> None:
    assert decisions("a") == pytest.approx(10 * SOON_PER_S + SOON_AT_ONCE, abs=2)
    assert decisions(*"abcdefgh") == pytest.approx(10 * SOON_OF_ALL_PER_S + SOON_OF_ALL_AT_ONCE, abs=2)


def test_a_repeated_or_overtaken_ask_is_stale(book: LeaseTable) -> None:
    assert ask(book, 5, rate_bits_per_s=1) is None
    assert ask(book, 5) == Refusal.STALE
    assert ask(book, 4) == Refusal.STALE
    assert book.leases(now_s=0.0)[0].rate_bits_per_s == 1


def test_an_ask_that_comes_after_its_own_release_is_stale(book: LeaseTable) -> None:
    ask(book, 1)
    book.release("a", "10.0.0.1", Release(3, "storage"), run=RUN, now_s=0.0)
    assert ask(book, 2) == Refusal.STALE
    assert book.leases(now_s=0.0) == ()


def test_an_old_release_does_not_end_a_later_lease(book: LeaseTable) -> None:
    ask(book, 5)
    book.release("a", "10.0.0.1", Release(4, "storage"), run=RUN, now_s=0.0)
    assert len(book.leases(now_s=0.0)) == 1


def test_a_broker_that_was_started_anew_counts_from_one_and_its_former_run_is_stale(book: LeaseTable) -> None:
    ask(book, 1_000)
    book.met("a", "10.0.0.1", run=LATER_RUN)
    assert ask(book, 1_001) == Refusal.STALE
    assert ask(book, 1, run=LATER_RUN) is None
    assert ask(book, 1_002) == Refusal.STALE


def test_a_second_connection_of_the_same_run_does_not_make_old_numbers_good(book: LeaseTable) -> None:
    ask(book, 5)
    book.met("a", "10.0.0.1", run=RUN)
    assert ask(book, 5) == Refusal.STALE


def test_who_never_said_hello_has_no_lease() -> None:
    assert ask(LeaseTable(), 1) == Refusal.STALE


def test_a_lease_outlives_its_connection_and_ends_in_time(book: LeaseTable) -> None:
    ask(book, 1)
    book.left("a", "10.0.0.1")
    assert len(book.leases(now_s=0.9)) == 1
    assert book.leases(now_s=1.0) == ()


def test_one_lease_a_peer_and_address_and_peers_do_not_touch_each_other(book: LeaseTable) -> None:
    book.met("a", "10.0.0.2", run=RUN)
    book.met("b", "10.0.0.1", run=LATER_RUN)
    ask(book, 1)
    ask(book, 2)
    book.ask("a", "10.0.0.2", replace(ASK, number=3), run=RUN, now_s=0.0)
    book.ask("b", "10.0.0.1", replace(ASK, number=1), run=LATER_RUN, now_s=0.0)
    book.release("b", "10.0.0.1", Release(2, "storage"), run=LATER_RUN, now_s=0.0)
    assert [(one.peer, one.address, one.number) for one in book.leases(now_s=0.0)] == [
        ("a", "10.0.0.1", 2),
        ("a", "10.0.0.2", 3),
    ]


def test_so_many_peers_hold_leases_and_no_more_until_one_ends() -> None:
    book = LeaseTable()
    for number in range(PEERS_MAX + 1):
        book.met(f"p{number}", "10.0.0.1", run=RUN)
    outcomes = [
        book.ask(f"p{number}", "10.0.0.1", replace(ASK, lease_s=2.0), run=RUN, now_s=0.0)
        for number in range(PEERS_MAX + 1)
    ]
    assert outcomes == [None] * PEERS_MAX + [Refusal.FULL]
    again = replace(ASK, number=2)
    assert book.ask("p3", "10.0.0.1", again, run=RUN, now_s=0.1) is None, "who holds one may renew it"
    last = f"p{PEERS_MAX}"
    assert book.ask(last, "10.0.0.1", again, run=RUN, now_s=2.0) is None, "the others' have ended"


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 2.0), st.floats(0.0, 1.0)), max_size=40))
def test_no_sequence_of_asks_holds_longer_than_two_seconds_after_the_last(
    asks: list[tuple[int, float, float]],
) -> None:
    book, now_s, highest = LeaseTable(), 0.0, 0
    book.met("a", "10.0.0.1", run=RUN)
    for number, lease_s, pause_s in asks:
        now_s += pause_s
        outcome = ask(book, number, now_s=now_s, lease_s=lease_s)
        assert (outcome is None) == (number > highest)
        highest = max(highest, number)
        leases = book.leases(now_s=now_s)
        assert len(leases) <= 1
        assert all(0 < lease.remaining_s <= LEASE_S_MAX + 1e-9 for lease in leases)
    assert book.leases(now_s=now_s + LEASE_S_MAX) == ()
