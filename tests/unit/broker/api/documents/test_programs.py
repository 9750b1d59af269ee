"""Who sends: counted connections added up, and the rest of a class, whose it can be."""

from __future__ import annotations

from msgspec.structs import replace

from broker.api.documents.programs import Program, busiest

RSYNC = Program(4820, "rsync", 0, "storage", "tcp", "10.0.0.9", None, 1, 3_000_000, 0, "measured")
SYNCTHING = Program(912, "syncthing", 1000, "other", "udp", None, 22000, 1, None, None, "unknown")
RESOLVER = Program(500, "resolved", 101, "other", "udp", None, 5353, 1, None, None, "unknown")
NOTHING = {"storage": 3_100_000, "other": 0}


def test_connections_of_one_program_to_one_peer_are_one_row() -> None:
    rows = busiest([RSYNC, RSYNC, replace(RSYNC, peer="10.0.0.8")], [], class_bits_per_s=NOTHING)
    assert [(row.peer, row.connections, row.throughput_bits_per_s) for row in rows] == [
        ("10.0.0.9", 2, 6_000_000), ("10.0.0.8", 1, 3_000_000),
    ]  # fmt: skip


def test_who_receives_is_shown_and_who_does_neither_is_not() -> None:
    taker, idle = replace(RSYNC, throughput_bits_per_s=0, received_bits_per_s=9_000_000), replace(RSYNC, pid=1)
    idle = replace(idle, throughput_bits_per_s=0, received_bits_per_s=9_999)
    assert busiest([taker, idle], [], class_bits_per_s=NOTHING) == [taker]


def test_the_rest_of_a_class_is_the_one_program_s_that_can_have_sent_it() -> None:
    (row,) = busiest([], [(SYNCTHING, False)], class_bits_per_s={"other": 5_000_000})
    assert (row.command, row.throughput_bits_per_s, row.rate_source) == ("syncthing", 5_000_000, "rest-of-class")


def test_of_several_that_can_have_sent_it_each_is_named_and_its_rate_is_unknown() -> None:
    rows = busiest([], [(SYNCTHING, False), (RESOLVER, False)], class_bits_per_s={"other": 5_000_000})
    assert {(row.command, row.throughput_bits_per_s, row.rate_source) for row in rows} == {
        ("syncthing", None, "unknown"), ("resolved", None, "unknown"),
    }  # fmt: skip
    (seen,) = busiest([], [(SYNCTHING, True), (RESOLVER, False)], class_bits_per_s={"other": 5_000_000})
    assert (seen.command, seen.throughput_bits_per_s) == ("syncthing", 5_000_000), "its packets were seen waiting"


def test_where_counted_connections_explain_a_class_nobody_else_is_named() -> None:
    tcp = replace(RSYNC, traffic_class="other", throughput_bits_per_s=4_800_000)
    assert busiest([tcp], [(SYNCTHING, False)], class_bits_per_s={"other": 5_000_000}) == [tcp]
    rows = busiest([tcp], [(SYNCTHING, True)], class_bits_per_s={"other": 5_000_000})
    assert [row.command for row in rows] == ["rsync", "syncthing"], "unless something of it waits"
