"""The bytes of `hive-broker/1`: what is written is read back, and nothing that a peer sends gets past its bounds."""

from __future__ import annotations

import math
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model.reasons import Reason
from broker.peers.protocol.wire import (
    MESSAGE_BYTES_MAX,
    NUMBER_MAX,
    TEXT_BYTES_MAX,
    Answer,
    Ask,
    Key,
    Message,
    Refusal,
    Release,
    UnacceptableAsk,
    read,
    write,
)
from hive_qos.units import RATE_BITS_PER_S_MAX
from transport.wire.error_codes import WireError

NUMBERS = st.integers(1, NUMBER_MAX)
RATES = st.integers(1, RATE_BITS_PER_S_MAX)
REASONS = st.builds(Reason, code=st.from_regex(r"[a-z]+(-[a-z]+){0,2}", fullmatch=True), text=st.text(max_size=600))
LEASES_S = st.integers(10, 2000).map(lambda milliseconds: milliseconds / 1000)
MESSAGES = st.one_of(
    st.builds(Ask, NUMBERS, st.just("storage"), RATES, RATES, LEASES_S, REASONS),
    st.builds(Answer, NUMBERS, st.booleans(), RATES, LEASES_S, REASONS),
    st.builds(Release, NUMBERS, st.just("storage")),
)
ASK = {0: 0, 1: 7, 2: "storage", 3: 10_000_000, 4: 100_000_000, 5: 500, 7: "burst", 8: "a burst comes"}


def of(fields: dict[Any, Any]) -> bytes:
    return cbor2.dumps(fields, canonical=True)


@given(MESSAGES)
def test_what_is_written_is_read_back_and_fits(message: Message) -> None:
    data = write(message)
    assert len(data) <= MESSAGE_BYTES_MAX
    again = read(data)
    assert type(again) is type(message)
    if isinstance(message, Release):
        assert again == message
        return
    assert isinstance(again, (Ask, Answer))
    assert {**msgspec.structs.asdict(again), "reason": None} == {**msgspec.structs.asdict(message), "reason": None}
    assert again.reason.text.isprintable()
    assert len(again.reason.text.encode()) <= TEXT_BYTES_MAX
    if message.reason.text.isprintable() and len(message.reason.text.encode()) <= TEXT_BYTES_MAX:
        assert again.reason.text == message.reason.text


@given(st.one_of(st.binary(max_size=1100), st.dictionaries(st.integers(0, 10), st.integers() | st.text(), max_size=9)))
def test_garbage_is_refused_with_an_error_of_ours_and_nothing_else(raw: bytes | dict[int, Any]) -> None:
    try:
        message = read(raw if isinstance(raw, bytes) else of(raw))
    except (WireError, UnacceptableAsk):
        return
    assert message is None or isinstance(message, (Ask, Answer, Release))


ABSURD = [
    -1,
    2**63,
    RATE_BITS_PER_S_MAX + 1,
    -(10**12),
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    "10 Mbit/s",
    None,
    True,
    [],
]


@pytest.mark.parametrize(
    ("key", "refusal"), [(Key.RATE, Refusal.RATE), (Key.CAPACITY, Refusal.CAPACITY), (Key.LEASE_MS, Refusal.LEASE)]
)
@pytest.mark.parametrize("value", ABSURD, ids=repr)
def test_an_absurd_figure_in_an_ask_is_refused_with_its_code(key: Key, refusal: Refusal, value: object) -> None:
    with pytest.raises(UnacceptableAsk) as caught:
        read(of({**ASK, int(key): value}))
    assert (caught.value.number, caught.value.refusal) == (7, refusal)


@pytest.mark.parametrize("lease_ms", [0, 9, 2001, 3_155_760_000_000])
def test_a_lease_is_ten_milliseconds_to_two_seconds(lease_ms: int) -> None:
    with pytest.raises(UnacceptableAsk) as caught:
        read(of({**ASK, 5: lease_ms}))
    assert caught.value.refusal == Refusal.LEASE


@pytest.mark.parametrize("name", ["compute", "control", "other", "", "Storage"])
def test_only_storage_is_ever_held_back(name: str) -> None:
    with pytest.raises(UnacceptableAsk) as caught:
        read(of({**ASK, 2: name}))
    assert caught.value.refusal == Refusal.CLASS


@pytest.mark.parametrize("number", [0, -1, 2**63, 1.0, None, "1", True])
def test_a_message_without_a_usable_number_breaks_the_protocol(number: object) -> None:
    with pytest.raises(WireError):
        read(of({**ASK, 1: number}))


@pytest.mark.parametrize(
    "fields",
    [
        {1: 1},
        {0: "ask", 1: 1},
        {0: 1, 1: 3, 6: 1, 3: 5, 5: 0},
        {0: 1, 1: 3, 6: True, 3: -5, 5: 0},
        {0: 1, 1: 3, 6: True, 3: 5, 5: 2001},
        {0: 2, 1: 3, 2: "x" * 17},
        {**ASK, 2: 4},
    ],
    ids=repr,
)
def test_a_malformed_message_breaks_the_protocol(fields: dict[int, Any]) -> None:
    with pytest.raises(WireError):
        read(of(fields))


def test_a_message_that_is_too_long_is_not_looked_at() -> None:
    with pytest.raises(WireError, match="1024 are allowed"):
        read(of({**ASK, 8: "x" * 1100}))


def test_unknown_keys_say_nothing_not_even_an_address() -> None:
    assert read(of({**ASK, 9: "10.0.0.99", 200: {1: [2]}, -5: b"10.0.0.99"})) == read(of(ASK))


def test_a_message_of_an_unknown_type_is_ignored() -> None:
    assert read(of({0: 3, 1: 1, 2: {0: 1}})) is None


@pytest.mark.parametrize("code", ["\x1b[31m", "ßcode", "a b", 5, "", "-"], ids=repr)
def test_a_code_that_is_none_is_unknown_and_its_ask_is_still_good(code: object) -> None:
    ask = read(of({**ASK, 7: code}))
    assert isinstance(ask, Ask)
    assert ask.reason.code == "unknown"


def test_a_reason_cannot_paint_on_a_terminal_or_begin_a_line() -> None:
    ask = read(of({**ASK, 8: "\x1b[2J\nroot: all is well\u202e"}))
    assert isinstance(ask, Ask)
    assert ask.reason.text == "?[2J?root: all is well?"
