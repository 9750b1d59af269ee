"""Only IPv4 and IPv6 stream and datagram sockets can be marked; whatever else is passed is named and left alone."""

from __future__ import annotations

import socket

import pytest

from shaping.classify.socket_priority import mark_socket, priority_of
from shaping.model.names import LEAF_MINOR, classid


@pytest.mark.parametrize(
    ("family", "kind", "words"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, "family AF_UNIX"),
        (socket.AF_NETLINK, socket.SOCK_RAW, "family AF_NETLINK"),
        (socket.AF_INET, socket.SOCK_RAW, "of type"),
    ],
)
def test_what_is_no_internet_socket_is_named_and_left_alone(
    family: socket.AddressFamily, kind: socket.SocketKind, words: str
) -> None:
    with socket.socket(family, kind, socket.IPPROTO_ICMP if family == socket.AF_INET else 0) as sock:
        with pytest.raises(ValueError, match=words):
            mark_socket(sock, minor=LEAF_MINOR["storage"], dscp=None)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 0


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_mark_holds_for_every_descriptor_of_the_open_file(
    family: socket.AddressFamily, kind: socket.SocketKind
) -> None:
    with socket.socket(family, kind) as theirs, theirs.dup() as passed:
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
