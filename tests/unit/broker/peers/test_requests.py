"""What is sent to whom and when: at once, again while it is wanted, released when gone, and not to a deaf address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.model.leases import LEASE_S_MAX, Hold
from broker.model.reasons import Reason
from broker.model.values import BrokerThere
from broker.peers.protocol.outgoing_requests import (
    ASKS_AT_ONCE,
    ASKS_PER_S,
    DIALS_MAX,
    KNOWN_MAX,
    RETRY_S_MAX,
    SHORT_LIFE_S,
    WANTED_MAX,
    HoldRequests,
)
from broker.peers.protocol.wire import Answer, Ask, Refusal, Release

BURST = Reason("burst", "a burst comes")
HOLD = Hold("10.0.0.2", "storage", 5_000_000, 100_000_000, 1.0, BURST)


def sent(asking: HoldRequests, now_s: float) -> list[Ask | Release]:
    return [one.message for one in asking.messages(now_s=now_s)]


@pytest.fixture
def asking() -> HoldRequests:
    """One that has reached the sender, and asked it at 0 s."""
    asking = HoldRequests()
    asking.want([HOLD], now_s=0.0)
    assert asking.dials(now_s=0.0) == ["10.0.0.2"]
    assert sent(asking, 0.0) == [], "nobody is there yet"
    asking.reached("10.0.0.2", now_s=0.0)
    assert sent(asking, 0.0) == [Ask(1, "storage", 5_000_000, 100_000_000, 1.0, BURST)]
    return asking


def test_a_few_are_asked_again_five_times_a_second_and_the_rest_at_half_of_the_lease() -> None:
    asking = HoldRequests()
    holds = [replace(HOLD, address=f"10.0.0.{number}") for number in range(2, 8)]
    for hold in holds:
        asking.reached(hold.address, now_s=0.0)
    times: dict[str, list[float]] = {}
    for tick in range(10):
        asking.want(holds, now_s=tick / 10)
        for one in asking.messages(now_s=tick / 10):
            times.setdefault(one.address, []).append(tick / 10)
    assert [times[hold.address] for hold in holds[:4]] == 4 * [[0.0, 0.2, 0.4, 0.6, 0.8]]
    assert [times[hold.address] for hold in holds[4:]] == 2 * [[0.0, 0.5]]


def test_nothing_is_repeated_before_its_time_and_then_it_is(asking: HoldRequests) -> None:
    for now_s in (0.05, 0.1, 0.14):
        asking.want([replace(HOLD, reason=Reason("burst", f"{1 - now_s:.1f} s more"))], now_s=now_s)
        assert sent(asking, now_s) == [], "another wording is no change"
    (again,) = sent(asking, 0.2)
    assert isinstance(again, Ask)
    assert again.number == 2
    assert sent(asking, 0.3) == []


@pytest.mark.parametrize("change", [{"rate_bits_per_s": 1}, {"capacity_bits_per_s": 1}, {"lease_s": 2.0}], ids=str)
def test_a_change_is_asked_at_once(asking: HoldRequests, change: dict[str, float]) -> None:
    asking.want([replace(HOLD, **change)], now_s=0.1)
    (ask,) = sent(asking, 0.1)
    assert isinstance(ask, Ask)
    assert ask.number == 2


def test_what_is_gone_is_released_once(asking: HoldRequests) -> None:
    asking.want([], now_s=0.1)
    assert sent(asking, 0.1) == [Release(2, "storage")]
    assert sent(asking, 0.2) == []
    assert asking.held(now_s=0.2) == {}


def test_what_has_run_out_needs_no_release(asking: HoldRequests) -> None:
    asking.want([], now_s=1.5)
    assert sent(asking, 1.5) == []


def test_a_hold_that_comes_back_is_asked_anew(asking: HoldRequests) -> None:
    asking.want([], now_s=0.1)
    asking.want([HOLD], now_s=0.15)
    assert [type(one) for one in sent(asking, 0.15)] == [Release, Ask]


def test_a_lease_is_never_asked_for_longer_than_the_protocol_has() -> None:
    asking = HoldRequests()
    asking.want([replace(HOLD, lease_s=60.0)], now_s=0.0)
    asking.reached(HOLD.address, now_s=0.0)
    (ask,) = sent(asking, 0.0)
    assert isinstance(ask, Ask)
    assert ask.lease_s == LEASE_S_MAX
    assert len(sent(asking, LEASE_S_MAX / 2)) == 1, "renewed by what was asked for, not by what was wished"


def test_after_a_lost_connection_everything_is_asked_anew_over_the_next(asking: HoldRequests) -> None:
    asking.lost(HOLD.address, lived_s=100.0, now_s=0.1)
    assert asking.brokers() == {HOLD.address: BrokerThere.UNKNOWN}
    assert sent(asking, 0.1) == []
    assert asking.dials(now_s=0.1) == [HOLD.address]
    asking.reached(HOLD.address, now_s=0.2)
    (ask,) = sent(asking, 0.2)
    assert isinstance(ask, Ask)
    assert ask.number == 2, "numbers go on"


def test_connections_that_end_at_once_are_not_dialled_again_at_once(asking: HoldRequests) -> None:
    asking.lost(HOLD.address, lived_s=SHORT_LIFE_S / 2, now_s=0.1)
    assert asking.dials(now_s=0.2) == []
    assert asking.dials(now_s=1.2) == [HOLD.address]


def test_where_nobody_answers_the_next_attempt_waits_twice_as_long_each_time() -> None:
    asking, now_s, waits = HoldRequests(), 0.0, []
    asking.want([HOLD], now_s=0.0)
    assert asking.brokers() == {HOLD.address: BrokerThere.UNKNOWN}
    for _ in range(9):
        assert asking.dials(now_s=now_s) == [HOLD.address]
        assert asking.dials(now_s=now_s) == [], "one at a time"
        asking.failed(HOLD.address, now_s=now_s)
        assert asking.brokers() == {HOLD.address: BrokerThere.NO}
        before_s = now_s
        while not asking.dials(now_s=now_s):
            now_s += 0.5
        asking._contacts[HOLD.address].dialling = False
        waits.append(now_s - before_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_who_refused_us_is_not_dialled_again_for_a_minute_and_the_status_says_why() -> None:
    asking = HoldRequests()
    asking.want([HOLD], now_s=0.0)
    asking.dials(now_s=0.0)
    asking.failed(HOLD.address, refused="its role is job", now_s=0.0)
    assert asking.state(HOLD.address, now_s=1.0) == "refused: its role is job"
    assert asking.dials(now_s=RETRY_S_MAX - 1) == []
    assert asking.dials(now_s=RETRY_S_MAX) == [HOLD.address]


def test_with_another_certificate_who_refused_us_is_dialled_at_once() -> None:
    asking = HoldRequests()
    asking.want([HOLD], now_s=0.0)
    asking.dials(now_s=0.0)
    asking.failed(HOLD.address, refused="revoked", now_s=0.0)
    asking.start_afresh()
    assert asking.state(HOLD.address, now_s=1.0) == "not dialled yet"
    assert asking.dials(now_s=1.0) == [HOLD.address]


def test_a_peer_that_dialled_us_is_asked_over_its_connection() -> None:
    asking = HoldRequests()
    asking.reached(HOLD.address, now_s=0.0)
    asking.want([HOLD], now_s=0.1)
    assert asking.dials(now_s=0.1) == []
    assert len(sent(asking, 0.1)) == 1


def answer(number: int, *, granted: bool = True, code: str = "leased", remaining_s: float = 1.0) -> Answer:
    return Answer(number, granted, 5_000_000 if granted else 0, remaining_s if granted else 0.0, Reason(code, ""))


def test_an_answer_is_in_force_until_its_lease_ends(asking: HoldRequests) -> None:
    asking.answered(HOLD.address, "b", answer(1, remaining_s=0.9), now_s=0.1)
    held = asking.held(now_s=0.5)[HOLD.address]
    assert (held.peer, held.granted, held.rate_bits_per_s, held.number) == ("b", True, 5_000_000, 1)
    assert asking.held(now_s=1.0) == {}


def test_a_refusal_stands_until_another_answer_comes(asking: HoldRequests) -> None:
    asking.answered(HOLD.address, "b", answer(1, granted=False, code="guarantee"), now_s=0.1)
    assert not asking.held(now_s=30.0)[HOLD.address].granted
    sent(asking, 30.0)
    asking.answered(HOLD.address, "b", answer(2), now_s=30.1)
    assert asking.held(now_s=30.2)[HOLD.address].granted


def test_answers_to_what_was_never_asked_and_older_ones_are_ignored(asking: HoldRequests) -> None:
    asking.answered("10.0.0.3", "c", answer(1), now_s=0.1)
    asking.answered(HOLD.address, "b", answer(2), now_s=0.1)
    assert asking.held(now_s=0.1) == {}
    sent(asking, 0.5)
    asking.answered(HOLD.address, "b", answer(2), now_s=0.6)
    asking.answered(HOLD.address, "b", answer(1, granted=False), now_s=0.7)
    assert asking.held(now_s=0.8)[HOLD.address].granted
    asking.answered(HOLD.address, "b", answer(2, granted=False), now_s=0.9)
    assert not asking.held(now_s=0.9)[HOLD.address].granted, "the same ask may be answered twice"


def test_an_ask_that_was_overtaken_by_a_later_one_is_no_refusal(asking: HoldRequests) -> None:
    sent(asking, 0.5)
    asking.answered(HOLD.address, "b", answer(1, granted=False, code=Refusal.STALE), now_s=0.6)
    assert asking.held(now_s=0.6) == {}


def test_holds_go_before_addresses_that_are_only_kept_in_reach() -> None:
    asking = HoldRequests()
    reach = [f"10.0.1.{number}" for number in range(20)]
    asking.want([], reach=reach, now_s=0.0)
    assert len(asking.dials(now_s=0.0)) == DIALS_MAX
    asking.want([HOLD], reach=reach, now_s=0.1)
    assert asking.dials(now_s=0.1) == [HOLD.address]


def test_no_number_of_addresses_makes_it_grow() -> None:
    asking = HoldRequests()
    for number in range(KNOWN_MAX + 200):
        now_s = float(number)
        address = f"10.1.{number // 256}.{number % 256}"
        asking.want([replace(HOLD, address=address)], now_s=now_s)
        asking.dials(now_s=now_s)
        asking.failed(address, now_s=now_s)
    assert len(asking.brokers()) == KNOWN_MAX
    asking.want([], reach=[f"10.2.0.{number}" for number in range(200)], now_s=1e4)
    assert len(asking.addresses()) == WANTED_MAX


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.floats(0.0, 0.2)), min_size=1, max_size=80))
def test_whatever_is_wanted_when_numbers_grow_and_no_peer_is_asked_too_often(
    ticks: list[tuple[int, bool, float]],
) -> None:
    asking, now_s, numbers, asks = HoldRequests(), 0.0, [0], 0
    asking.reached(HOLD.address, now_s=0.0)
    for rate, wanted, pause_s in ticks:
        now_s += pause_s
        asking.want([replace(HOLD, rate_bits_per_s=rate)] if wanted else [], now_s=now_s)
        for message in sent(asking, now_s):
            assert message.number > numbers[-1]
            numbers.append(message.number)
            asks += isinstance(message, Ask)
    assert asks <= ASKS_AT_ONCE + now_s * ASKS_PER_S + 1
