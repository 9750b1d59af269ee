"""Who sends to us, counted over connections that come and go."""

from __future__ import annotations

import pytest

from broker.measure.senders import FORGET_S, LASTS_S, SENDERS_MAX, PeerRtt, SenderTable
from broker.measure.tcp_diag import TcpConnection
from broker.model.leases import HoldOutcome
from broker.model.reasons import Reason
from broker.model.values import BrokerThere, SenderSample

SENDER = "10.0.0.3"


def connection(arrived: int, *, at_s: float, port: int = 5000, address: str = SENDER) -> TcpConnection:
    return TcpConnection(
        local=("10.0.0.1", 4873), remote=(address, port), uid=0, inode=1, classid=0, dscp=0, rtt_s=0.01,
        rtt_s_min=0.005, acked_bytes=0, received_bytes=0, sent_segments=0, retransmitted_segments=0,
        delivery_rate_bits_per_s=0, application_limited=False, at_s=at_s,
        arrived_segments=arrived, segment_bytes=10,
    )  # fmt: skip


def seen(book: SenderTable, now_s: float, **known: object) -> dict[str, SenderSample]:
    options: dict[str, object] = {
        "broker_of": lambda _: BrokerThere.UNKNOWN,
        "trip_of": lambda _: None,
        "held": {},
        **known,
    }
    found = book.samples(interface_of=lambda _: "eth0", now_s=now_s, **options)  # type: ignore[arg-type]
    return {sample.address: sample for sample in found.get("eth0", ())}


def test_what_came_before_us_does_not_count_and_what_comes_later_counts_from_its_first_byte() -> None:
    book = SenderTable()
    book.count([(connection(1_000_000, at_s=0.0), "storage")], whole=True)
    book.count(
        [(connection(1_000_500, at_s=0.1), "storage"), (connection(300, at_s=0.1, port=5001), "storage")], whole=True
    )
    sample = seen(book, 0.15)[SENDER]
    assert (sample.received_bytes, sample.traffic_class) == (8_000, "storage")
    assert sample.age_s == pytest.approx(0.05)


@pytest.mark.parametrize(("looked", "counts"), [(True, 3_000), (False, 0)])
def test_the_first_of_all_counts_from_its_first_byte_where_there_was_none_before(looked: bool, counts: int) -> None:
    book = SenderTable()
    book.count([], whole=looked)
    book.count([(connection(300, at_s=0.1), "storage")], whole=True)
    assert seen(book, 0.1)[SENDER].received_bytes == counts


def test_one_that_comes_into_view_late_does_not_bring_its_whole_life() -> None:
    book, old = SenderTable(), 10**9
    book.count([(connection(0, at_s=0.0), "storage")], whole=False)
    late = [(connection(0, at_s=0.1), "storage"), (connection(old, at_s=0.1, port=5001), "storage")]
    book.count(late, whole=True)
    assert seen(book, 0.1)[SENDER].received_bytes == 0, "it may have been there all the time"
    book.count([(connection(0, at_s=FORGET_S + 0.2), "storage")], whole=False)  # forgets the second
    book.count([(connection(old + 3, at_s=FORGET_S + 0.3, port=5001), "storage")], whole=False)
    book.count([(connection(old + 5, at_s=FORGET_S + 0.4, port=5001), "storage")], whole=False)
    assert seen(book, FORGET_S + 0.4)[SENDER].received_bytes == 20


def test_one_that_changes_its_class_brings_what_comes_from_then_on() -> None:
    book = SenderTable()
    for at_s, arrived, traffic_class in ((0.0, 1, "other"), (0.1, 10**9, "other"), (0.2, 10**9 + 7, "storage")):
        book.count([(connection(arrived, at_s=at_s), traffic_class)], whole=True)
    assert seen(book, 0.2)[SENDER].received_bytes == 70


def test_a_counter_survives_the_connections_that_made_it() -> None:
    book = SenderTable()
    book.count([(connection(0, at_s=0.0), "storage")], whole=True)
    book.count([(connection(700, at_s=0.1), "storage")], whole=True)
    book.count([(connection(50, at_s=0.2, port=6000), "storage")], whole=True)  # the first has ended, another one began
    assert seen(book, 0.2)[SENDER].received_bytes == 7_500
    # Its counter goes back: a new one, same ends.
    book.count([(connection(40, at_s=0.3, port=6000), "storage")], whole=True)
    assert seen(book, 0.3)[SENDER].received_bytes == 7_900


def test_a_counter_that_wraps_goes_on() -> None:
    book = SenderTable()
    book.count([(connection(2**32 - 5, at_s=0.0), "storage")], whole=True)
    book.count([(connection(7, at_s=0.1), "storage")], whole=True)
    assert seen(book, 0.1)[SENDER].received_bytes == 120


def test_the_same_look_counts_once() -> None:
    book = SenderTable()
    book.count([(connection(0, at_s=0.0), "storage")], whole=True)
    look = [(connection(700, at_s=0.1), "storage")]
    book.count(look, whole=True)
    book.count(look, whole=True)
    assert seen(book, 0.5)[SENDER].received_bytes == 7_000


def test_other_traffic_is_nobodys_sender_and_classes_are_told_apart() -> None:
    book = SenderTable()
    book.count([(connection(0, at_s=0.0), "other")], whole=True)
    assert seen(book, 0.0) == {}
    for at_s in (0.1, 0.1 + LASTS_S):
        look = [(connection(0, at_s=at_s), "storage"), (connection(0, at_s=at_s, address="10.0.0.4"), "compute")]
        book.count(look, whole=True)
    assert book.addresses("storage") == (SENDER,)


def test_who_connects_once_and_goes_is_not_dialled_and_who_comes_again_and_again_is() -> None:
    book, often = SenderTable(), "10.0.0.4"
    for number in range(4):
        at_s = number * LASTS_S
        once = connection(0, at_s=at_s, address=f"10.0.1.{number}")
        book.count([(once, "storage"), (connection(0, at_s=at_s, address=often, port=number), "storage")], whole=True)
        assert book.addresses("storage") == ((often,) if number else ())


def test_senders_are_forgotten_and_bounded() -> None:
    book = SenderTable()
    book.count([(connection(1, at_s=0.0), "storage")], whole=True)
    book.count([(connection(1, at_s=FORGET_S + 1, address="10.0.0.4"), "storage")], whole=True)
    assert list(seen(book, FORGET_S + 1)) == ["10.0.0.4"]
    many = [
        (connection(1, at_s=20.0, address=f"10.0.{number // 250}.{number % 250}"), "storage")
        for number in range(SENDERS_MAX + 50)
    ]
    book.count(many, whole=True)
    assert len(seen(book, 20.0)) == SENDERS_MAX


def test_what_the_other_broker_said_goes_with_the_sample() -> None:
    book = SenderTable()
    book.count([(connection(1, at_s=0.0), "storage")], whole=True)
    why = Reason("held-for-peer", "")
    kept = seen(
        book, 0.0, held={SENDER: HoldOutcome("c", SENDER, 1, True, 7_000, why)}, broker_of=lambda _: BrokerThere.YES
    )[SENDER]
    assert (kept.granted_bits_per_s, kept.refused, kept.broker) == (7_000, False, "yes")
    refused = seen(book, 0.0, held={SENDER: HoldOutcome("c", SENDER, 1, False, 0, why)})[SENDER]
    assert (refused.granted_bits_per_s, refused.refused) == (None, True)


def test_of_an_address_the_least_round_trip_counts_of_connections_that_brought_something() -> None:
    book = SenderTable()

    def look(at_s: float, *trips: tuple[int, int, float | None]) -> float | None:
        looked = [
            (connection(arrived, at_s=at_s, port=port)._replace(receive_rtt_s=trip_s), "storage")
            for port, arrived, trip_s in trips
        ]
        book.count(looked, whole=True)
        return seen(book, at_s)[SENDER].receive_rtt_s

    look(0.0, (1, 0, 0.1), (2, 0, 0.2), (3, 0, None))
    assert look(0.1, (1, 0, 0.1), (2, 50, 0.2), (3, 50, None)) == 0.2
    assert look(0.2, (1, 50, 0.1), (2, 90, 0.2), (3, 90, None)) == 0.1
    assert look(0.3, (1, 50, 0.1), (2, 90, 0.2), (3, 90, None)) is None, "said before"


def test_the_last_round_trip_to_a_broker_is_told_beside_the_least() -> None:
    book = SenderTable()
    book.count([(connection(1, at_s=0.0), "storage")], whole=True)
    sample = seen(book, 0.0, trip_of={SENDER: PeerRtt(0.004, 0.02, -0.25)}.get)[SENDER]
    assert (sample.rtt_s, sample.broker_rtt_s, sample.broker_rtt_age_s) == (0.004, 0.02, 0.25)
