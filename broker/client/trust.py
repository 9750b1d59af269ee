"""Whether the program behind a session socket may be the broker: root's, or our own.

Whoever may make a file can listen at it, and what we pass there are our sockets; so the kernel is asked who listens.
"""

from __future__ import annotations

import os
import socket
import struct

from broker.client.protocol import MessageError

_UID_MAP = "/proc/self/uid_map"
_OVERFLOW_UID = "/proc/sys/kernel/overflowuid"


def check_server(sock: socket.socket) -> None:
    """Take a connected socket whose listener is root's or our own user's.

    In a user namespace the kernel shows users from outside, the host's root among them, as the overflow user: he is
    taken there too, where no user of the namespace itself can have that number.

    Raises:
        MessageError: with code "untrusted"; the text names the user.
    """
    uid = listener_of(sock)
    if uid not in (0, os.geteuid()) and not is_outsider(uid):
        raise MessageError("untrusted", f"user {uid} listens there, neither root nor ourselves; not a broker to trust")


def listener_of(sock: socket.socket) -> int:
    """The user who listened at the other end of a connected Unix socket."""
    _, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def is_outsider(uid: int, *, uid_map: str = _UID_MAP, overflow_uid: str = _OVERFLOW_UID) -> bool:
    """Whether a number stands for the users outside of our user namespace."""
    try:
        with open(overflow_uid, encoding="ascii") as file:
            if int(file.read()) != uid:
                return False
        with open(uid_map, encoding="ascii") as file:
            ranges = [tuple(int(word) for word in line.split()) for line in file]
    except (OSError, ValueError):
        return False
    return not any(inside <= uid < inside + count for inside, _, count in ranges)
