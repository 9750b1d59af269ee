"""Only IPv4 and IPv6 stream and datagram sockets can be marked; whatever else is passed is named and left alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shaping.model import LEAF_MINOR, classid
from shaping.sockets import mark_socket, priority_of, socket_of


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def a_pipe(stack: ExitStack) -> int:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends[0]


def a_file(stack: ExitStack) -> int:
    return stack.enter_context(Path(__file__).open("rb")).fileno()


def a_directory(stack: ExitStack) -> int:
    descriptor = os.open("/", os.O_RDONLY)
    stack.callback(os.close, descriptor)
    return descriptor


def a_unix_socket(stack: ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_UNIX)).fileno()


def a_netlink_socket(stack: ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)).fileno()


def a_raw_socket(stack: ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)).fileno()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_pipe, "is a pipe"),
        (a_file, "is a file"),
        (a_directory, "is a directory"),
        (a_unix_socket, "family AF_UNIX"),
        (a_netlink_socket, "family AF_NETLINK"),
        (a_raw_socket, "of type"),
    ],
)
def test_what_is_no_internet_socket_is_named_and_stays_open(
    stack: ExitStack, make: Callable[[ExitStack], int], words: str
) -> None:
    descriptor = make(stack)
    with pytest.raises(ValueError, match=words):
        socket_of(descriptor)
    os.fstat(descriptor)


def test_a_closed_descriptor_is_named() -> None:
    with pytest.raises(ValueError, match="is not open"):
        socket_of(1_000_000)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_mark_holds_for_every_descriptor_of_the_open_file(
    family: socket.AddressFamily, kind: socket.SocketKind
) -> None:
    with socket.socket(family, kind) as theirs, socket_of(os.dup(theirs.fileno())) as passed:
        mark_socket(passed, minor=LEAF_MINOR["storage"], dscp=1)
        assert priority_of(theirs) == classid(LEAF_MINOR["storage"])
        assert theirs.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 == 1
        if family == socket.AF_INET6:
            assert theirs.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) >> 2 == 1
        mark_socket(passed, minor=0, dscp=0)
        assert priority_of(theirs) == 0


def test_the_congestion_bits_of_a_datagram_socket_are_kept() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
        mark_socket(sock, minor=LEAF_MINOR["compute"], dscp=18)
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 18 << 2 | 2


@pytest.mark.parametrize(("minor", "dscp"), [(0x10000, 1), (-1, 1), (0x210, 64), (0x210, -1)])
def test_marks_outside_their_range_change_nothing(minor: int, dscp: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        with pytest.raises(ValueError, match="is not in 0"):
            mark_socket(sock, minor=minor, dscp=dscp)
        assert priority_of(sock) == 0
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0
