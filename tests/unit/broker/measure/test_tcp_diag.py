"""What sock_diag says is read whatever the order of its parts, and its filters are run as the kernel runs them."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest

from broker.measure import tcp_diag
from broker.measure.tcp_diag import NOT_LOOPBACK, among_cgroups, read_connection

TOS, INFO, CLASS_ID, CGROUP = 5, 2, 17, 21


def info() -> bytes:
    """A struct tcp_info of 280 bytes, longer than what is read of it."""
    made = bytearray(280)
    made[7] = 1  # limited by the application
    for offset, value in ((24, 3), (68, 20_000), (92, 30_000), (100, 5), (148, 10_000), (156, 900)):
        struct.pack_into("=I", made, offset, value)
    for offset, value in ((120, 1 << 40), (128, 2 << 40), (160, 125_000)):
        struct.pack_into("=Q", made, offset, value)
    return bytes(made)


def message(*attributes: tuple[int, bytes], family: int = socket.AF_INET, to: str = "10.0.0.2") -> memoryview:
    source = ipaddress.ip_address("10.0.0.1" if family == socket.AF_INET else "fd00::1").packed.ljust(16, b"\0")
    packed = ipaddress.ip_address(to).packed.ljust(16, b"\0")
    body = struct.pack("=BBxx", family, 1) + struct.pack("!HH", 5000, 4000) + source + packed
    body += struct.pack("=IQIIIII", 0, 77, 0, 0, 4321, 1000, 99)
    for kind, value in attributes:
        body += struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
    return memoryview(body)


PARTS = (
    (TOS, b"\x04"),
    (INFO, info()),
    (CLASS_ID, struct.pack("=I", 0xFFE00310)),
    (CGROUP, struct.pack("=Q", 1 << 33)),
)


def test_every_field_is_read_in_its_unit() -> None:
    found = read_connection(message(*PARTS), 7.0)
    assert found is not None
    assert (found.local, found.remote) == (("10.0.0.1", 5000), ("10.0.0.2", 4000))
    assert (found.uid, found.inode, found.classid, found.dscp, found.cgroup_id) == (1000, 99, 0xFFE00310, 1, 1 << 33)
    assert (found.rtt_s, found.rtt_s_min, found.receive_rtt_s) == (0.02, 0.01, 0.03)
    assert (found.acked_bytes, found.received_bytes, found.waiting_bytes) == (1 << 40, 2 << 40, 4321)
    assert (found.sent_segments, found.retransmitted_segments) == (900, 5)
    assert (found.delivery_rate_bits_per_s, found.application_limited, found.at_s) == (1_000_000, True, 7.0)


def test_the_order_of_the_parts_does_not_matter_though_the_length_is_the_same() -> None:
    first, second = message(*PARTS), message(*reversed(PARTS))
    assert len(first) == len(second)
    for _ in range(2):
        assert read_connection(first) == read_connection(second) != None  # noqa: E711 - both, and neither missing


def test_parts_that_are_missing_or_cut_short_are_not_read() -> None:
    found = read_connection(message((INFO, info())))
    assert found is not None
    assert (found.classid, found.cgroup_id, found.dscp) == (0, 0, 0)
    assert read_connection(message((INFO, info()[:100]))) is None
    whole = message(*PARTS)
    for length in range(len(whole)):
        read_connection(whole[:length])  # whatever it gives, it ends, and reads nothing beyond


@pytest.mark.parametrize(
    ("family", "to"),
    [(socket.AF_INET, "127.8.8.8"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1"),
     (socket.AF_INET, "10.0.0.1")],
)  # fmt: skip
def test_what_does_not_leave_the_host_is_left_out(family: int, to: str) -> None:
    assert read_connection(message(*PARTS, family=family, to=to)) is None


def test_ipv4_through_an_ipv6_socket_is_shown_as_what_it_is() -> None:
    found = read_connection(message(*PARTS, family=socket.AF_INET6, to="::ffff:10.0.0.2"))
    assert found is not None
    assert found.remote == ("10.0.0.2", 4000)


def taken(code: bytes, *, family: int = socket.AF_INET, to: str = "10.0.0.2", cgroup: int = 0) -> bool:
    """Run a filter as inet_diag_bc_run does, after the checks of inet_diag_bc_audit."""
    address = ipaddress.ip_address(to).packed
    starts, at = set(), 0
    while at < len(code):  # the audit walks by `yes` and has to arrive at the end
        starts.add(at)
        at += code[at + 1]
    assert at == len(code)
    at = 0
    while at < len(code):
        kind, yes, no = struct.unpack_from("=BBH", code, at)
        assert at + no in {*starts, len(code), len(code) + 4}, "a jump into the middle of a condition"
        if kind == 1:
            holds = False
        elif kind == 13:
            holds = struct.unpack_from("=Q", code, at + 4)[0] == cgroup
        else:
            assert kind == 8
            wanted_family, prefix, port = struct.unpack_from("=BBxxi", code, at + 4)
            assert port == -1
            other = address[12:] if address[:12] == bytes(10) + b"\xff\xff" and wanted_family == 2 else address
            size = 4 if wanted_family == socket.AF_INET else 16
            network = int.from_bytes(code[at + 12 : at + 12 + size], "big") >> (8 * size - prefix)
            holds = len(other) == size and int.from_bytes(other, "big") >> (8 * size - prefix) == network
        at += yes if holds else no
    return at == len(code)


@pytest.mark.parametrize(
    ("family", "to", "expected"),
    [
        (socket.AF_INET, "127.0.0.1", False), (socket.AF_INET, "127.255.0.9", False),
        (socket.AF_INET, "128.0.0.1", True),
        (socket.AF_INET6, "::1", False), (socket.AF_INET6, "::2", True), (socket.AF_INET6, "::ffff:127.0.0.1", False),
        (socket.AF_INET6, "::ffff:10.0.0.1", True), (socket.AF_INET6, "fd00::1", True),
    ],
)  # fmt: skip
def test_the_filter_refuses_loopback_and_nothing_else(family: int, to: str, expected: bool) -> None:
    assert taken(NOT_LOOPBACK, family=family, to=to) is expected


def test_the_filter_takes_the_cgroups_that_it_names() -> None:
    for count in (0, 1, 2, tcp_diag.CGROUPS_FILTERED_MAX):
        code = among_cgroups([(1 << 40) + number for number in range(count)])
        found = {number for number in range(-2, count + 2) if taken(code, cgroup=(1 << 40) + number)}
        assert found == set(range(count))
