"""What callers may pass to either engine, and how it is told what they may not."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest

from hive_qos.errors import ConfigurationError, ConnectionLostError, MisuseError
from transport.engine.base import EngineSettings, Priority
from transport.engine.validation import (
    called,
    check_endpoint,
    check_open,
    check_settings,
    dialled,
    endpoint_numbered,
    flat,
    full_hello,
    handed_over,
    key_of,
    level_of,
    message_of,
    name_of,
    read_credentials,
)
from transport.identity import ephemeral_identity
from transport.identity.credentials import Credentials, Trust
from transport.wire.control_frames import HelloKey, LimitKey
from transport.wire.header import Header, Kind, MatchKey

SETTINGS = EngineSettings()
HEADER = Header(kind=Kind.CONTROL, length=4)
FOUR = memoryview(b"four")


@pytest.fixture
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        yield sock


def test_an_engine_of_another_process_or_a_closed_one_says_so() -> None:
    check_open(process=os.getpid(), closed=False)
    with pytest.raises(MisuseError, match="a forked child must open its own"):
        check_open(process=os.getpid() + 1, closed=True)
    with pytest.raises(MisuseError, match="the engine is closed"):
        check_open(process=os.getpid(), closed=True)


def test_settings_that_no_quic_can_have_are_refused() -> None:
    for datagram_bytes in (1200, 65000):
        check_settings(replace(SETTINGS, datagram_bytes=datagram_bytes), engine="native", controllers=["auto"])
    for datagram_bytes in (1199, 65001):
        with pytest.raises(MisuseError, match=f"datagrams of {datagram_bytes} bytes"):
            check_settings(replace(SETTINGS, datagram_bytes=datagram_bytes), engine="native", controllers=["auto"])
    with pytest.raises(ConfigurationError, match="the native engine has cubic, bbr"):
        check_settings(SETTINGS, engine="native", controllers=["cubic", "bbr"])


def test_an_endpoint_needs_a_udp_socket_and_somebody_to_believe(udp: socket.socket) -> None:
    check_endpoint(udp, Trust(pins={bytes(32): "a"}))
    with pytest.raises(MisuseError, match="trusts nobody"):
        check_endpoint(udp, Trust())
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp, pytest.raises(MisuseError, match="UDP"):
        check_endpoint(tcp, Trust(pins={bytes(32): "a"}))


def test_a_socket_is_closed_where_the_call_that_it_came_with_raises(udp: socket.socket) -> None:
    with handed_over(udp):
        pass
    assert udp.fileno() >= 0
    with pytest.raises(MisuseError), handed_over(udp):
        check_endpoint(udp, Trust())
    assert udp.fileno() < 0


def test_a_socket_stays_open_where_the_call_that_it_came_with_is_interrupted_for_it_may_be_taken(
    udp: socket.socket,
) -> None:
    with pytest.raises(KeyboardInterrupt), handed_over(udp):
        raise KeyboardInterrupt
    assert udp.fileno() >= 0


def test_a_socket_that_is_closed_already_is_refused(udp: socket.socket) -> None:
    udp.close()
    with pytest.raises(MisuseError, match="this one is closed"):
        check_endpoint(udp, Trust(pins={bytes(32): "a"}))


def test_credentials_are_read_or_refused() -> None:
    good = ephemeral_identity("a").credentials
    certificates, _key = read_credentials(good)
    assert len(certificates) == 1
    for bad in (Credentials(b"nothing", good.private_key_pem), Credentials(good.certificate_chain_pem, b"nothing")):
        with pytest.raises(MisuseError, match="credentials cannot be read"):
            read_credentials(bad)


def test_a_hello_holds_the_limits_and_what_its_caller_says() -> None:
    hello = full_hello({5: "job", HelloKey.ENGINE: "mine"}, engine="native", settings=SETTINGS)
    assert hello[HelloKey.LIMITS] == {LimitKey.MESSAGE_BYTES: SETTINGS.message_bytes_max}
    assert (hello[HelloKey.VERSION], hello[HelloKey.JOB], hello[HelloKey.ENGINE]) == (1, "job", "mine")
    with pytest.raises(MisuseError, match="a hello that the peer would refuse: a control frame of"):
        full_hello({64: "x" * 5000}, engine="native", settings=SETTINGS)


def test_only_bytes_in_a_row_are_taken_and_only_writable_ones_received_into() -> None:
    assert flat(None, writable=True) is None
    assert flat(memoryview(b"abc"), writable=False) == b"abc"
    for crooked in (
        memoryview(bytearray(8))[::2],
        memoryview(bytearray(8)).cast("I"),
        memoryview(bytearray(8)).cast("B", [2, 4]),
    ):
        with pytest.raises(MisuseError, match="contiguous, one-dimensional"):
            flat(crooked, writable=False)
    with pytest.raises(MisuseError, match="writable"):
        flat(memoryview(b"abc"), writable=True)


def test_a_message_is_its_header_and_the_payload_that_the_header_says() -> None:
    _, payload = message_of(HEADER, memoryview(b"four"))
    assert payload == b"four"
    assert message_of(replace(HEADER, length=0), memoryview(b""))[1] is None
    with pytest.raises(MisuseError, match="the header says 4 bytes, the payload has 0"):
        message_of(HEADER, None)
    with pytest.raises(MisuseError, match="a header that the peer would refuse"):
        message_of(replace(HEADER, length=0, group="g" * 200), None)


class Small(IntEnum):
    FIVE = 5


class Word(str, Enum):  # noqa: UP042 - StrEnum shows what it says; this one shows its name
    FLOAT = "float32"


NO_INTEGERS = [True, np.True_, np.int64(4), Small.FIVE, 4.0, np.float64(4), "4", None, np.array([4]), [4]]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", ["step", "bucket", "tag", "length", "shape"])
def test_what_is_no_plain_integer_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(MisuseError, match=rf"{name} must be of type int; this (is|holds) {type(value).__name__}"):
        message_of(replace(HEADER, **{name: (value,) if name == "shape" else value}), memoryview(b"four"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("kind", value) for value in (1, np.int64(1), True, "1", None)],
        *[(name, value) for name in ("job", "group", "dtype", "call") for value in (b"x", 1, None, Word.FLOAT)],
        *[("shape", value) for value in (4, "4", [4], np.array([4]), None)],
    ],
    ids=repr,
)
def test_a_field_of_another_type_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(MisuseError, match=rf"{name} must be of type \w+; this is {type(value).__name__}"):
        message_of(replace(HEADER, **{name: value}), memoryview(b"four"))


def test_a_key_holds_no_more_than_a_header() -> None:
    key = MatchKey(Kind.BULK, "g" * 128, *(2**64 - 1,) * 3)
    assert key_of(key) is key
    for wrong in (-1, 2**64):
        with pytest.raises(MisuseError, match="no message can have: step is not an unsigned 64-bit integer"):
            key_of(replace(key, step=wrong))
    for group, why in (("g" * 129, "group is longer than 128 bytes"), ("\ud800", "group is not UTF-8")):
        with pytest.raises(MisuseError, match=f"no message can have: {why}"):
            key_of(replace(key, group=group))


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", ["step", "bucket", "tag"])
def test_what_is_no_plain_integer_is_refused_in_a_key_too(name: str, value: Any) -> None:
    with pytest.raises(MisuseError, match=rf"{name} must be of type int; this is {type(value).__name__}"):
        key_of(replace(MatchKey(Kind.CONTROL), **{name: value}))


def test_a_group_that_is_no_text_and_a_kind_that_is_none_are_refused_in_a_key_too() -> None:
    with pytest.raises(MisuseError, match="group must be of type str; this is int"):
        key_of(MatchKey(Kind.CONTROL, group=1))
    with pytest.raises(MisuseError, match="kind must be of type Kind; this is int, 1"):
        key_of(MatchKey(1))


def test_a_name_is_text_that_can_be_written() -> None:
    assert name_of("b") == "b"
    for wrong in (b"b", Word.FLOAT):
        with pytest.raises(MisuseError, match=f"a peer's name must be text; this is {type(wrong).__name__}"):
            name_of(wrong)
    with pytest.raises(MisuseError, match=r"a peer's name must be UTF-8; this is '\\ud800'"):
        name_of("\ud800")


def test_every_priority_is_served_behind_the_control_stream_and_before_the_next() -> None:
    assert [level_of(priority) for priority in Priority] == [1, 2, 3, 4, 5]


def test_who_cannot_be_dialled_is_named(udp: socket.socket) -> None:
    assert called(("192.0.2.1", 7), None) == "192.0.2.1:7"
    assert called(("192.0.2.1", 7), "b") == "b"
    assert endpoint_numbered({3: udp}, 3, peer="b") is udp
    assert dialled(udp, ("192.0.2.1", 7), peer="b") == ("192.0.2.1", 7)
    with pytest.raises(ConnectionLostError, match="there is no endpoint 4") as lost:
        endpoint_numbered({3: udp}, 4, peer="b")
    assert lost.value.peer == "b"
    for host, port in (("::1", 7), ("localhost", 7), ("a" * 64, 7), ("\ud800", 7), ("192.0.2.1", 2**64), (7, 7)):
        with pytest.raises(ConnectionLostError, match=f"{re.escape(repr(host))} cannot be dialled from this") as lost:
            dialled(udp, (host, port), peer="b")
        assert lost.value.peer == "b"


def test_a_socket_for_both_families_dials_ipv4_as_it_will_be_read() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        assert dialled(sock, ("192.0.2.1", 7), peer="b")[:2] == ("::ffff:192.0.2.1", 7)
