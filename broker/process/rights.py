"""Who may use the broker, and who may change policy: the peer's credentials (unix(7)) against two groups of the host.

Root and the daemon's own user may do everything; the admin group may change policy; the group may use the broker. Root
of a container is root by its number alone: it may use the broker, and change policy where its groups allow it.
A group that the host does not have gives nobody a right. Users named in `match = [{uid = ...}]` are admitted instead,
so that a host without our sysusers file is still of use; `notes` says so.

A subordinate uid (subuid(5)) counts as its owner, or whoever has containers would be 65,536 users. Root's rights do not
spread to its containers, nor those of the daemon's own user: such a range counts as one user, its first uid.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import grp
import os
import pwd
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from broker.policy.types import Policy

_SO_PEERGROUPS = 59  # asm-generic/socket.h; Python's socket module does not name it
_SO_PEERPIDFD = 77  # likewise; since Linux 6.5
_GONE = (errno.ESRCH, errno.EINVAL, errno.ENODATA)
"""What the kernel says of a process that has been waited for; which of them depends on its version."""
_DEMOTED = ("storage", "other")
_GROUPS_MAX = 65_536
"""Supplementary groups of a process: NGROUPS_MAX of credentials(7)."""
SUBUID = Path("/etc/subuid")
_UID_DIGITS_MAX = 10
"""Of 32 bits."""
_libc = ctypes.CDLL(None, use_errno=True)


class Right(enum.IntEnum):
    """What a peer may do; a higher right includes the lower ones."""

    NONE = 0
    USE = 1
    CHANGE = 2


@dataclass(frozen=True)
class Peer:
    """The process at the other end when it connected, as the kernel tells it; `uid` as whom it counts (`owner_of`).

    Args:
        apart: in a pid or user namespace of its own, as a container's processes are. Looked at for root alone.
    """

    pid: int
    uid: int
    groups: frozenset[int]
    apart: bool = False


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel who is at the other end of a connected Unix socket.

    Raises:
        OSError: not such a socket.
    """
    pid, uid, gid = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    peer = Peer(pid=pid, uid=owner_of(uid), groups=frozenset((gid, *_groups_of(sock))))
    return replace(peer, apart=_is_apart(sock, peer)) if peer.uid in (0, os.geteuid()) else peer


def _is_apart(sock: socket.socket, peer: Peer) -> bool:
    """Whether the process at the other end is in another pid or user namespace than ours, or not there any more.

    By its numbers in pid namespaces below ours, and its map of users as seen from ours: both can be read without the
    right to look into it, which `/proc/PID/ns` asks for (user_namespaces(7), pid_namespaces(7)).
    """
    process = process_of(sock, peer)
    if process is None:
        return True
    try:
        with open(f"/proc/{peer.pid}/status", encoding="ascii", errors="replace") as status:
            numbers = next(line.split()[1:] for line in status if line.startswith("NSpid:"))
        users = Path(f"/proc/{peer.pid}/uid_map").read_bytes()
        signal.pidfd_send_signal(process, 0)  # it is still there: what was read is of this process
    except (OSError, StopIteration):
        return True
    finally:
        os.close(process)
    return len(numbers) != 1 or users != Path("/proc/self/uid_map").read_bytes()


def _groups_of(sock: socket.socket) -> list[int]:
    """The supplementary groups at the other end. By the C library: Python's getsockopt gives 1,024 bytes at most."""
    groups = (ctypes.c_uint32 * _GROUPS_MAX)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    if _libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"SO_PEERGROUPS: {os.strerror(number)}")
    return groups[: size.value // ctypes.sizeof(ctypes.c_uint32)]


def process_of(sock: socket.socket, peer: Peer) -> int | None:
    """A pidfd of the process at the other end, to be closed by the caller; None when it is not there any more.

    The kernel names it (SO_PEERPIDFD) since Linux 6.5. Before, it is the process that has the number now: another one
    only where the first has ended since it connected, and its number was given out again within microseconds.

    Raises:
        OSError: there is no descriptor to spare, or a sandbox forbids it.
    """
    if peer.pid <= 0:  # of a pid namespace that we do not see into
        return None
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as problem:
        if problem.errno in _GONE:
            return None
        if problem.errno != errno.ENOPROTOOPT:
            raise
    try:
        return os.pidfd_open(peer.pid)
    except OSError as problem:
        if problem.errno in _GONE:
            return None
        raise


@dataclass(frozen=True)
class Authority:
    """The rights that one policy gives on this host. Make a new one when the policy changes."""

    group: int | None
    admin_group: int | None
    uids: frozenset[int]
    class_uids: frozenset[tuple[str, int]]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy) -> Authority:
        """Look the policy's groups up on this host."""
        notes = []
        group, admin_group = _group(policy.daemon.group), _group(policy.daemon.admin_group)
        rules = [(entry.name, rule.uid) for entry in policy.classes for rule in entry.match]
        class_uids = frozenset((name, uid) for name, uid in rules if uid is not None)
        uids: frozenset[int] = frozenset()
        if group is None:
            uids = frozenset(uid for _, uid in class_uids)
            who = "root alone" if not uids else f"root and the users {', '.join(map(str, sorted(uids)))} of the policy"
            notes.append(f"this host has no group {policy.daemon.group!r}: {who} may use the broker")
        if admin_group is None:
            notes.append(f"this host has no group {policy.daemon.admin_group!r}: root alone may change policy")
        return cls(group=group, admin_group=admin_group, uids=uids, class_uids=class_uids, notes=tuple(notes))

    def right_of(self, peer: Peer) -> Right:
        """Say what a peer may do."""
        is_root = peer.uid in (0, os.geteuid())
        if (is_root and not peer.apart) or (self.admin_group is not None and self.admin_group in peer.groups):
            return Right.CHANGE
        if is_root or peer.uid in self.uids or (self.group is not None and self.group in peer.groups):
            return Right.USE
        return Right.NONE

    def may_enter(self, peer: Peer, traffic_class: str) -> bool:
        """Whether a peer may put its whole process into a class.

        Whoever may use the broker may demote itself. What promotes every socket of a program, those of its children
        too, is the operator's to allow: `compute` and `control` need a rule on the user, or the right to change policy.
        """
        right = self.right_of(peer)
        if right is Right.CHANGE or traffic_class in _DEMOTED:
            return right >= Right.USE
        return right >= Right.USE and (traffic_class, peer.uid) in self.class_uids

    @property
    def socket_mode(self) -> int:
        """Permissions of the socket files: the group's, or everybody's where only SO_PEERCRED can tell."""
        return 0o660 if self.group is not None else 0o666


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


class UserOwners:
    """The subordinate ranges of this host, read again when the file changes. For any thread."""

    def __init__(self, path: Path = SUBUID) -> None:
        self._path = path
        self._known: tuple[tuple[int, ...], tuple[tuple[str, int, int], ...]] = ((), ())

    def owner_of(self, uid: int) -> int:
        """The user that a uid counts as: the owner of the first range that it lies in, else itself.

        Raises:
            OSError: the file is there and cannot be read.
        """
        for name, first, count in self._ranges():
            if first <= uid < first + count:
                owner = _uid_of(name)
                return first if owner is None or owner in (0, os.geteuid()) else owner
        return uid

    def _ranges(self) -> tuple[tuple[str, int, int], ...]:
        try:
            found = self._path.stat()
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._known[0] != version:
                self._known = version, tuple(_subuid_ranges(self._path.read_text(errors="surrogateescape")))
        except FileNotFoundError:  # a host without subordinate users
            self._known = (), ()
        return self._known[1]


def _subuid_ranges(text: str) -> Iterator[tuple[str, int, int]]:
    """The ranges of a file: owner, first uid, how many. What is no range is left out, as newuidmap does."""
    for line in text.splitlines():
        name, *numbers = line.strip().split(":")
        if name and len(numbers) == 2 and all(_is_number(one) for one in numbers):
            first, count = map(int, numbers)
            if first > 0:  # uid 0 is nobody's
                yield name, first, count


def _uid_of(name: str) -> int | None:
    """The user of a name, or of a number in its place; None where there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if _is_number(name) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _UID_DIGITS_MAX


owner_of = UserOwners().owner_of
