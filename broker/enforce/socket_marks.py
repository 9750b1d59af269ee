"""Which mark a socket gets, so that HTB puts its packets into the leaf of its class, and which class a mark means."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from shaping.classify.socket_priority import netns_cookie, own_netns_cookie
from shaping.model.names import BULK_NAME, CLASS_OF_MARK, DSCP, JOB_MINOR, MARK_MINOR, classid, show_classid

CLASS_OF_PRIORITY: Mapping[int, str] = {classid(minor): name for minor, name in CLASS_OF_MARK.items()}
"""The class that a socket's priority means to HTB."""
JOB_LEAVES = tuple(map(show_classid, JOB_MINOR))
"""What `tc` calls the leaves of compute's jobs, by slot."""
_TAKEN_BACK = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
"""Protocols whose sockets `enforce.reclassify` can move when their job has ended. sock_diag lists UDP-Lite elsewhere,
and names MPTCP's sockets by other cookies than their own."""


class SocketMarks:
    """Puts sockets of the daemon's own and of its clients into their leaves.

    Args:
        mark: `shaping.classify.socket_priority.mark_socket`, or another where SO_PRIORITY is not allowed.
        mark_minor: what `mark` is told for a target (`Shaper.mark_minor`).
    """

    def __init__(self, mark: Callable[..., None], mark_minor: Callable[[str], int] = MARK_MINOR.__getitem__) -> None:
        self._mark, self._mark_minor, self._netns_cookie = mark, mark_minor, own_netns_cookie()

    def mark_passed(self, sock: socket.socket, *, traffic_class: str, role: str, slot: int | None) -> None:
        """Mark a client's socket.

        Args:
            slot: of the leaf of its job; None where it has none. Bulk traffic of any job has one leaf, and a socket of
                neither TCP nor UDP gets the default leaf of its class.

        Raises:
            ValueError: it is no socket of IPv4 or IPv6.
            HiveError, OSError: the kernel refuses.
        """
        leaf = BULK_NAME if traffic_class == "compute" and role == "bulk" else traffic_class
        if leaf == BULK_NAME or sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) not in _TAKEN_BACK:
            slot = None
        minor = self._mark_minor(leaf) if slot is None else JOB_MINOR[slot]
        self._mark(sock, minor=minor, dscp=DSCP[leaf])

    def mark_control(self, own: socket.socket) -> None:
        """Mark a socket of the daemon's own: it gets the class `control`."""
        self._mark(own, minor=self._mark_minor("control"), dscp=DSCP["control"])

    def is_foreign(self, sock: socket.socket) -> bool:
        """Whether a socket is of another network namespace."""
        return netns_cookie(sock) != self._netns_cookie
