"""The kernel's list of UDP sockets, with real ones."""

from __future__ import annotations

import os
import socket

from broker.measure.tcp_diag import udp_pages


def inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def test_a_socket_that_is_bound_is_listed_with_its_port_and_one_on_loopback_is_not() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as open_to_all,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sixth,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as local,
    ):
        open_to_all.bind(("0.0.0.0", 0))
        sixth.bind(("::", 0))
        local.bind(("127.0.0.1", 0))
        found = {one.inode: one for page in udp_pages() for one in page}
        for sock in (open_to_all, sixth):
            listed = found[inode(sock)]
            assert listed.local[1] == sock.getsockname()[1]
            assert (listed.remote[1], listed.uid, listed.waiting_bytes) == (0, os.getuid(), 0)
        assert inode(local) not in found
