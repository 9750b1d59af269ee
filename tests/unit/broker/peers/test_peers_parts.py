"""The small parts of the channel between brokers: answers, reading, connections, refusals, addresses."""

from __future__ import annotations

from typing import Any

import pytest

from broker.model.addresses import is_askable, plain, plain_host
from broker.model.leases import HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.peers.protocol.connections import CONNECTIONS_MAX, CROWDED_IDLE_S, IDLE_S, Connection, Connections
from broker.peers.protocol.receive_quota import AHEAD, MESSAGES_AT_ONCE, MESSAGES_PER_S, Reading
from broker.peers.protocol.replies import REPEAT_S, Replies
from broker.peers.refusals import KNOWN_MAX, SHOWN_S, Refusals
from broker.peers.refusals import REPEAT_S as LOG_REPEAT_S

LEASE = Lease("a", "10.0.0.1", 3, "storage", 5_000_000, 100_000_000, age_s=0.0, remaining_s=0.8)


class Heard:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    debug = info = error = warning


def verdict(rate: int = 5_000_000, *, number: int = 3, granted: bool = True, code: str = "leased") -> HoldOutcome:
    return HoldOutcome("a", "10.0.0.1", number, granted, rate, Reason(code, ""))


def test_each_ask_is_answered_once_and_a_change_of_mind_at_once() -> None:
    answers = Replies()
    ((lease, answer),) = answers.due([verdict()], [LEASE], now_s=0.0)
    assert (lease, answer.number, answer.granted, answer.remaining_s) == (LEASE, 3, True, 0.8)
    assert answers.due([verdict()], [LEASE], now_s=5.0) == []
    ((_, no),) = answers.due([verdict(0, granted=False)], [LEASE], now_s=5.001)
    assert (no.granted, no.remaining_s) == (False, 0.0)


def test_a_rate_that_moves_with_every_tick_is_told_now_and_then() -> None:
    answers = Replies()
    answers.due([verdict(1_000)], [LEASE], now_s=0.0)
    assert answers.due([verdict(1_040)], [LEASE], now_s=1.0) == [], "4 %"
    assert answers.due([verdict(1_200)], [LEASE], now_s=REPEAT_S / 2) == []
    assert len(answers.due([verdict(1_200)], [LEASE], now_s=1.1)) == 1


def test_a_verdict_on_a_lease_that_is_over_is_not_told() -> None:
    answers = Replies()
    assert answers.due([verdict()], [], now_s=0.0) == []
    assert answers.due([verdict(number=4)], [LEASE], now_s=0.0) == [], "of no ask that there was"


def test_a_peer_is_read_a_few_messages_ahead_and_then_as_its_allowance_grows() -> None:
    reading, posted = Reading(), []

    def post(peer: str) -> int:
        posted.append(peer)
        return len(posted)

    reading.begin("a", now_s=0.0)
    reading.go_on(post, now_s=0.0)
    assert posted == ["a"] * AHEAD
    for operation in range(1, 1_000):  # a flood: each message that was posted for has come
        reading.done(operation)
        reading.go_on(post, now_s=0.0)
    assert len(posted) == MESSAGES_AT_ONCE
    for tick in range(1, 101):
        for operation in range(len(posted) + 1):
            reading.done(operation)
        reading.go_on(post, now_s=tick * 0.1)
    assert MESSAGES_AT_ONCE + 10 * MESSAGES_PER_S - 1 <= len(posted) <= MESSAGES_AT_ONCE + 10 * MESSAGES_PER_S


def test_a_peer_that_comes_back_has_no_new_allowance_while_another_connection_of_it_lives() -> None:
    reading = Reading()
    reading.begin("a", now_s=0.0)
    for operation in range(int(MESSAGES_AT_ONCE)):
        reading.go_on(lambda peer: None, now_s=0.0)
        reading.done(operation)
    reading.begin("a", now_s=0.0)
    posted: list[str] = []
    reading.go_on(lambda peer: posted.append(peer) or 1, now_s=0.0)
    assert posted == []


def connection(
    number: int, *, peer: str = "", address: str = "10.0.0.1", dialled: bool = True, used_s: float = 0.0
) -> Connection:
    return Connection(number, peer or f"p{number}", address, b"r" * 16, "native", True, dialled, used_s, used_s)


def test_the_oldest_connection_to_an_address_is_used_and_the_other_when_it_is_gone() -> None:
    connections = Connections()
    first, second = connection(1), connection(2)
    connections.add(first)
    connections.add(second)
    assert connections.to("10.0.0.1") is first
    assert connections.to("10.0.0.1", peer="p2") is second
    connections.remove(first)
    assert connections.to("10.0.0.1") is second
    assert connections.to("10.0.0.2") is None


def test_of_each_address_the_connection_counts_that_messages_go_over() -> None:
    connections = Connections()
    for number, address in ((1, "10.0.0.1"), (2, "10.0.0.2"), (3, "10.0.0.1")):
        connections.add(connection(number, address=address))
    assert sorted(one.number for one in connections.in_use()) == [1, 2]
    assert all(connections.to(one.address) is one for one in connections.in_use())


def test_who_dialled_closes_what_has_served_and_nothing_that_is_needed() -> None:
    connections = Connections()
    ours, theirs = connection(1), connection(2, dialled=False)
    connections.add(ours)
    connections.add(theirs)
    assert connections.idle(lambda one: False, now_s=IDLE_S - 1) == []
    assert connections.idle(lambda one: True, now_s=IDLE_S + 1) == []
    assert connections.idle(lambda one: False, now_s=IDLE_S + 2) == [], "it was needed just now"
    assert connections.idle(lambda one: False, now_s=2 * IDLE_S + 2) == [ours]


def test_where_there_is_no_room_the_longest_idle_one_goes_first() -> None:
    connections = Connections()
    for number in range(CONNECTIONS_MAX):
        assert not connections.full
        connections.add(connection(number, dialled=False, used_s=float(number % 7) + 1))
    assert connections.full
    least = connections.to_displace("new", lambda one: one.number == 0, now_s=CROWDED_IDLE_S + 3)
    assert least is not None
    assert least.number == 7
    assert connections.to_displace("p3", lambda one: False, now_s=100.0) is None, "it has one"
    assert connections.to_displace("new", lambda one: True, now_s=100.0) is None


def test_where_there_is_no_room_whoever_has_most_loses_one_to_whoever_has_two_fewer() -> None:
    connections = Connections()
    for number, peer in enumerate(["two", "three", "three", "three", "two", "one"]):
        connections.add(connection(number, peer=peer, used_s=float(number)))

    def displaced(peer: str) -> int | None:
        one = connections.to_displace(peer, lambda one: one.number == 1, now_s=10.0)
        return None if one is None else one.number

    assert displaced("new") == 2, "the longest unused of the three, but for the one that is needed"
    assert displaced("one") == 2
    assert displaced("two") is None
    assert displaced("three") is None


def test_a_refusal_is_logged_once_and_shown_for_a_while() -> None:
    log = Heard()
    refusals = Refusals(log=log)
    for minute in range(30):
        refusals.note("10.0.0.9", f"minute {minute}: its role is job\x1b[2J", code=0x23, now_s=60.0 * minute)
    assert [line["reason"] for line in log.lines] == ["minute 0: its role is job\\x1b[2J"]
    assert refusals.recent(now_s=1_800.0) == {"10.0.0.9": "minute 29: its role is job\\x1b[2J"}
    assert refusals.recent(now_s=1_740.0 + SHOWN_S) == {}
    refusals.note("10.0.0.9", "its role is job", code=0x22, now_s=1_740.0)
    refusals.note("10.0.0.9", "its role is job", code=0x23, now_s=LOG_REPEAT_S)
    assert len(log.lines) == 3


def test_reasons_that_somebody_makes_up_fill_neither_log_nor_memory() -> None:
    log = Heard()
    refusals = Refusals(log=log)
    for number in range(10_000):
        refusals.note(f"10.0.{number // 250}.{number % 250}", f"reason {number}", code=number, now_s=number / 1_000)
    assert len(log.lines) == KNOWN_MAX
    assert len(refusals.recent(now_s=10.0)) == KNOWN_MAX
    refusals.note("10.0.0.1", "another day", code=1, now_s=10_000.0)
    assert log.lines[-1]["reason"] == "another day"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fd00:0:0::1", "fd00::1"),
        ("FD00::A", "fd00::a"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_has_one_text(written: str, read: str) -> None:
    assert plain(written) == read


def test_what_is_no_address_is_none() -> None:
    with pytest.raises(ValueError, match="host-a"):
        plain("host-a")
    assert plain_host("host-a") is None
    assert plain_host("[::ffff:10.0.0.1]:4710") == "10.0.0.1"
    assert plain_host("fd00::1:4710") == "fd00::1"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "fe80::1"])
def test_nobody_and_everybody_is_not_asked(address: str) -> None:
    assert not is_askable(address)
