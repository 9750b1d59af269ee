"""Which broker is in charge of a network namespace: the one that holds a Unix socket with an abstract name of ours.

Abstract names belong to the network namespace (unix(7)), whatever files and process numbers a program sees: a broker in
a container with the host's network is found, too. Anybody may bind such a name. So a claim counts only where the kernel
says that root, or our own user, made its socket (sock_diag(7), UDIAG_SHOW_UID).

The kernel drops the name with the last descriptor. The watchdog of a dead daemon has inherited one and keeps the claim.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import struct
from dataclasses import dataclass

from hive_qos.errors import KernelRejectedError, ShapingError
from hive_qos.netlink import NetlinkSocket, Request, attribute_map

NAME = "hive-qos-broker"

# linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_SHOW_NAME, _SHOW_UID = 0x1, 0x40
_NAME, _UID = 0, 7
_MESSAGE = struct.Struct("=4xI8x")  # struct unix_diag_msg: the socket's inode, and what is not needed here


@dataclass(frozen=True)
class Claim:
    """A socket by which somebody has charge. `pid` is None in another pid namespace than ours."""

    inode: int
    uid: int
    pid: int | None


def claim(name: str = NAME) -> socket.socket:
    """Make a claim, beside whatever others there are: look at `claims` afterwards. Closing the socket ends it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # which nobody can send to unless it listens
    try:
        sock.bind(f"\0{name}/{_pid_namespace()}/{os.getpid()}/{secrets.token_hex(8)}")
    except BaseException:
        sock.close()
        raise
    return sock


def claims(name: str = NAME) -> tuple[Claim, ...]:
    """All claims of this network namespace that count.

    Raises:
        ShapingError: this kernel does not list Unix sockets.
    """
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
    prefix, here, believed = f"\0{name}/".encode(), f"{_pid_namespace()}/".encode(), (0, os.geteuid())

    def read(_: int, message: bytes) -> Claim | None:
        attributes = attribute_map(message, _MESSAGE.size)
        bound = attributes.get(_NAME, b"")
        if not bound.startswith(prefix):
            return None
        (uid,) = struct.unpack("=I", attributes.get(_UID, bytes(4)))  # before Linux 5.3 nobody's: then every one counts
        if uid not in believed:
            return None
        pid = bound.removeprefix(prefix + here).split(b"/")[0]
        return Claim(inode=_MESSAGE.unpack_from(message)[0], uid=uid, pid=int(pid) if pid.isdigit() else None)

    with contextlib.closing(NetlinkSocket(_NETLINK_SOCK_DIAG)) as kernel:
        try:
            found = kernel.read("list Unix sockets", Request(_SOCK_DIAG_BY_FAMILY, 0, body), read)
        except KernelRejectedError as problem:
            if problem.errno_value != errno.ENOENT:
                raise
            raise ShapingError(
                "this kernel does not list Unix sockets, which tells whether another broker works here: "
                "modprobe unix_diag (CONFIG_UNIX_DIAG)"
            ) from problem
    return tuple(one for one in found if one is not None)


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
