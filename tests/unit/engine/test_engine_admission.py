"""Whom the engines let in: by their hello, and by how many of them there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.engine.admission import (
    HALF_OPEN_MAX,
    HALF_OPEN_PER_SOURCE_MAX,
    LINKS_PER_NAME_MAX,
    LINKS_PER_PEER_MAX,
    UNPROVED_MAX,
    FirstPacket,
    admit_first_packet,
    admit_hello,
    admit_to_identity,
    admit_to_name,
    identity_of,
    message_bytes_accepted,
    source_of,
)
from transport.wire.cbor import decode_map, encode_map
from transport.wire.control_frames import APPLICATION_KEY_MIN, TEXT_BYTES_MAX, HelloKey, LimitKey
from transport.wire.error_codes import WireCode, WireError

RUN: dict[int, Any] = {HelloKey.VERSION: 1, HelloKey.JOB: "job", HelloKey.RUN: b"run"}


def test_of_the_same_job_and_run_is_let_in() -> None:
    admit_hello(RUN, dict(RUN))


def test_whoever_says_nothing_of_its_job_lets_every_job_in() -> None:
    admit_hello({HelloKey.VERSION: 1}, RUN)


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ({HelloKey.JOB: "other"}, WireCode.JOB_MISMATCH, "is of job 'other', and this is job 'job'"),
        ({HelloKey.RUN: b"old"}, WireCode.JOB_MISMATCH, "is of another run of job 'job'"),
        ({HelloKey.VERSION: 2}, WireCode.VERSION_UNSUPPORTED, "version 2"),
        ({HelloKey.LIMITS: {0: "many"}}, WireCode.HELLO_INVALID, "limits"),
    ],
)
def test_another_job_run_or_version_is_refused_with_its_code(said: dict[int, object], code: int, why: str) -> None:
    with pytest.raises(WireError, match=why) as refused:
        admit_hello(RUN, {**RUN, **said})
    assert refused.value.wire_code == code


def test_a_job_that_is_not_said_is_another_one() -> None:
    with pytest.raises(WireError, match="is of job None"):
        admit_hello(RUN, {HelloKey.VERSION: 1})


@pytest.mark.parametrize(
    ("admit", "most"), [(admit_to_name, LINKS_PER_NAME_MAX), (admit_to_identity, LINKS_PER_PEER_MAX)]
)
def test_as_many_as_there_may_be_are_let_in_and_no_more(admit, most: int) -> None:
    admit(most - 1)
    with pytest.raises(WireError, match=f"{most} connections between us already") as refused:
        admit(most)
    assert refused.value.wire_code == WireCode.TOO_MANY_CONNECTIONS


@pytest.mark.parametrize(
    ("half_open", "of_source", "unproved", "proved"),
    [
        (0, 0, FirstPacket.TAKEN, FirstPacket.TAKEN),
        (UNPROVED_MAX - 1, UNPROVED_MAX - 1, FirstPacket.TAKEN, FirstPacket.TAKEN),
        (UNPROVED_MAX, 0, FirstPacket.TO_PROVE, FirstPacket.TAKEN),
        (HALF_OPEN_MAX - 1, HALF_OPEN_PER_SOURCE_MAX - 1, FirstPacket.TO_PROVE, FirstPacket.TAKEN),
        (HALF_OPEN_PER_SOURCE_MAX, HALF_OPEN_PER_SOURCE_MAX, FirstPacket.IGNORED, FirstPacket.IGNORED),
        (HALF_OPEN_MAX, 0, FirstPacket.IGNORED, FirstPacket.IGNORED),
    ],
)
def test_a_first_packet_is_taken_while_few_wait_and_then_only_from_a_proved_address(
    half_open: int, of_source: int, unproved: FirstPacket, proved: FirstPacket
) -> None:
    assert admit_first_packet(half_open=half_open, of_source=of_source, proved=False) is unproved
    assert admit_first_packet(half_open=half_open, of_source=of_source, proved=True) is proved


def test_a_source_is_an_address_or_the_network_of_one() -> None:
    assert source_of("10.0.0.1") == source_of("::ffff:10.0.0.1") != source_of("10.0.0.2")
    assert source_of("2001:db8::1") == source_of("2001:db8::2:3%eth0") != source_of("2001:db8:0:1::1")


def test_ranks_and_kinds_of_one_name_are_counted_apart() -> None:
    own = {APPLICATION_KEY_MIN: 5}
    hellos = [{}, {APPLICATION_KEY_MIN: 0}, {APPLICATION_KEY_MIN: 1}]
    identities = {identity_of("host", own, hello, bulk=bulk) for hello in hellos for bulk in (False, True)}
    assert len(identities) == 6
    assert identity_of("host", own, {APPLICATION_KEY_MIN: [1]}, bulk=False) == ("host", None, False)


def test_a_rank_counts_for_nothing_among_those_who_have_none() -> None:
    identities = {identity_of("host", {}, {APPLICATION_KEY_MIN: rank}, bulk=False) for rank in range(20)}
    assert identities == {("host", None, False)}


def test_a_peer_that_names_no_limit_accepts_what_can_be_written() -> None:
    assert message_bytes_accepted({}) == 2**62 - 1
    assert message_bytes_accepted({HelloKey.LIMITS: {LimitKey.MESSAGE_BYTES: 2**64 - 1}}) == 2**62 - 1
    assert message_bytes_accepted({HelloKey.LIMITS: {LimitKey.MESSAGE_BYTES: 1000}}) == 1000


scalars = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=300),
    st.binary(max_size=80),
    st.booleans(),
    st.none(),
    st.floats(),
)
values = st.one_of(
    scalars, st.lists(scalars, max_size=70), st.dictionaries(st.integers(0, 3), scalars, max_size=4),
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from([*range(8), 63, 64, 65, 900]), values, max_size=8), st.booleans())
def test_any_hello_that_can_be_read_is_let_in_or_refused_and_what_it_says_fits(
    said: dict[int, object], of_this_run: bool
) -> None:
    """Whatever else were raised would end the engine, for this runs where every peer's events are told."""
    hello = decode_map(encode_map({**said, **RUN} if of_this_run else said))
    try:
        admit_hello(RUN, hello)
    except WireError:
        return
    assert 0 <= message_bytes_accepted(hello) < 2**62
    rank = identity_of("peer", {APPLICATION_KEY_MIN: 0}, hello, bulk=False)[1]
    assert rank is None or isinstance(rank, int)
    assert len(f"{hello.get(HelloKey.JOB, '')}".encode()) <= TEXT_BYTES_MAX
