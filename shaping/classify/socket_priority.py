"""Put one socket into a class: its codepoint first, its priority after, so that HTB needs no filter at all.

HTB takes `skb->priority` as a class id when its major is the qdisc's own, before it asks any filter. A packet gets the
priority of its socket. What undoes that, all of it in the program's own hands: a later IP_TOS (it resets the priority),
an IP_TOS control message with a packet (it replaces both for that packet), and `accept`, whose new socket starts at
priority 0 whatever its listener had (seen on Linux 6.18; `cgroup.py` mends that for cgroups).
"""

from __future__ import annotations

import errno
import socket
import struct

from hive_qos.errors import KernelRejectedError, PrivilegeError, ReadBackError
from shaping.model.names import classid

_SO_NETNS_COOKIE = 71  # asm-generic/socket.h; Python's socket module does not name it
_ECN_MASK = 0x03  # of the TOS byte: RFC 3168, its two low bits


def mark_socket(sock: socket.socket, *, minor: int, dscp: int | None) -> None:
    """Mark a socket, for the life of its open file, wherever descriptors of it are.

    Args:
        sock: an AF_INET or AF_INET6 stream or datagram socket, anybody's.
        minor: a value of `model.LEAF_MINOR`; 0 takes the class away.
        dscp: codepoint 0..63; None leaves the socket's own. The two ECN bits are kept.

    Raises:
        ValueError: not such a socket; the text says what it is.
        PrivilegeError: the priority needs CAP_NET_ADMIN.
        KernelRejectedError: the kernel refused an option.
        ReadBackError: the option does not stick.
    """
    _check(sock)
    if not 0 <= minor <= 0xFFFF:
        raise ValueError(f"minor {minor:#x} is not in 0..0xffff")
    if dscp is not None:
        if not 0 <= dscp <= 63:
            raise ValueError(f"dscp {dscp} is not in 0..63")
        if sock.family == socket.AF_INET6:
            _set_dscp(sock, socket.IPPROTO_IPV6, socket.IPV6_TCLASS, "IPV6_TCLASS", dscp)
        # An AF_INET6 socket sends IPv4, too, to mapped addresses, and takes IP_TOS for those.
        _set_dscp(sock, socket.IPPROTO_IP, socket.IP_TOS, "IP_TOS", dscp)
    priority = classid(minor) if minor else 0
    _set(sock, socket.SOL_SOCKET, socket.SO_PRIORITY, "SO_PRIORITY", priority)
    found = priority_of(sock)
    if found != priority:
        raise ReadBackError("SO_PRIORITY of a passed socket", wanted=f"{priority:#x}", found=f"{found:#x}")


def priority_of(sock: socket.socket) -> int:
    """SO_PRIORITY as the 32 bits that HTB sees."""
    return _get(sock, socket.SOL_SOCKET, socket.SO_PRIORITY, "SO_PRIORITY") & 0xFFFFFFFF


def netns_cookie(sock: socket.socket) -> int | None:
    """The number of a socket's network namespace, given out once (SO_NETNS_COOKIE); None before Linux 5.14."""
    try:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return None


def own_netns_cookie() -> int | None:
    """Likewise of the network namespace of this thread."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return netns_cookie(probe)


def _check(sock: socket.socket) -> None:
    """Raise ValueError unless the socket is an IPv4 or IPv6 stream or datagram one."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        name = socket.AddressFamily(sock.family).name if sock.family in set(socket.AddressFamily) else sock.family
        raise ValueError(f"descriptor {sock.fileno()} is a socket of family {name}, not AF_INET or AF_INET6")
    if sock.type not in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        raise ValueError(f"descriptor {sock.fileno()} is a socket of type {sock.type}, not a stream or datagram one")


def _set_dscp(sock: socket.socket, level: int, option: int, name: str, dscp: int) -> None:
    ecn = _get(sock, level, option, name) & _ECN_MASK
    _set(sock, level, option, name, dscp << 2 | ecn)
    found = _get(sock, level, option, name)
    if found >> 2 != dscp:
        raise ReadBackError(f"{name} of a passed socket", wanted=dscp << 2, found=found)


def _get(sock: socket.socket, level: int, option: int, name: str) -> int:
    try:
        return sock.getsockopt(level, option)
    except OSError as error:  # MPTCP over IPv6 has no IP_TOS, for one
        raise KernelRejectedError(f"read {name}", errno_value=error.errno or 0, detail=error.strerror or "") from error


def _set(sock: socket.socket, level: int, option: int, name: str, value: int) -> None:
    try:
        sock.setsockopt(level, option, struct.pack("=I", value))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise PrivilegeError(
                f"{name} = {value:#x} needs CAP_NET_ADMIN in the socket's network namespace"
            ) from error
        raise KernelRejectedError(
            f"set {name} = {value:#x}", errno_value=error.errno or 0, detail=error.strerror or ""
        ) from error
