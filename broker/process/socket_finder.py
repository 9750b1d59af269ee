"""The socket finder: a small process that looks into other processes for the daemon, which may not.

    daemon --"s NUMBER PID"------------------------> finder    which sockets a process holds
    daemon --"e NUMBER"----------------------------> finder    end that list
    daemon --"t NUMBER PID DESCRIPTOR COOKIE"------> finder    a duplicate of one
    daemon <--number, kind, values [a descriptor]--- finder    one answer, or several of kind MORE before the last

It gives sockets of IPv4 and IPv6 alone, whatever it is asked for, and ends with the daemon.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import struct
import sys
from array import array
from collections.abc import Iterator

from broker.process.proc_fds import sockets_of
from hive_qos.errors import KernelRejectedError, PrivilegeError
from shaping.classify.pidfd_getfd import duplicate

ANSWER = struct.Struct("=QB7x")  # the question's number, the kind; values of 64 bits follow
MORE, LAST, DENIED, GONE, GIVEN, REFUSED = range(6)
"""REFUSED has the errno as its value."""
SOCKETS_AT_ONCE = 512
"""8 KiB of values: a page fits any socket buffer."""
BYTES_MAX = ANSWER.size + 16 * SOCKETS_AT_ONCE
"""Of an answer: a descriptor and an inode of 8 bytes for each socket of a page."""


def serve(sock: socket.socket) -> None:
    """Say that we are there, and answer until the other end closes.

    A question goes before the pages of lists, and lists take turns: the daemon reads several at a time, in slices, and
    no page waits for the whole of a longer list.
    """
    sock.send(ANSWER.pack(0, LAST))
    questions = select.poll()
    questions.register(sock, select.POLLIN)
    lists: dict[int, Iterator[tuple[int, int]]] = {}
    while True:
        if lists and not questions.poll(0):
            number = next(iter(lists))
            held = lists.pop(number)
            if _page(sock, number, held):
                lists[number] = held  # behind the others
            continue
        if not (question := sock.recv(BYTES_MAX)):
            break
        word, number, *rest = question[:1], *map(int, question[1:].split())
        if word == b"s":
            lists[number] = sockets_of(*rest)
        elif word == b"e":
            lists.pop(number, None)
        else:
            _give(sock, number, *rest)


def _page(sock: socket.socket, number: int, held: Iterator[tuple[int, int]]) -> bool:
    """Send the next page of a list; False where it was the last."""
    try:
        page = list(itertools.islice(held, SOCKETS_AT_ONCE))
    except PermissionError:
        sock.send(ANSWER.pack(number, DENIED))
        return False
    sock.send(ANSWER.pack(number, MORE if page else LAST) + array("Q", itertools.chain.from_iterable(page)).tobytes())
    return bool(page)


def _give(sock: socket.socket, number: int, pid: int, descriptor: int, cookie: int) -> None:
    try:
        with duplicate(pid, descriptor, cookie=cookie, close=_close) as found:
            if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
                sock.send(ANSWER.pack(number, GONE))
            else:
                socket.send_fds(sock, [ANSWER.pack(number, GIVEN)], [found.fileno()])
    except PrivilegeError:
        sock.send(ANSWER.pack(number, DENIED))
    except KernelRejectedError as problem:
        sock.send(ANSWER.pack(number, REFUSED) + array("Q", [problem.errno_value]).tobytes())


def _close(descriptor: int) -> None:
    """Close a duplicate that may be the last by now, and then lingers: a process that exits does not
    (`broker.process.closer`).

    The child has a copy until ours is closed, which the end of the pipe tells it.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.close(descriptor)
    os.close(writer)


def main(arguments: list[str]) -> int:
    """`SOCKET_DESCRIPTOR`, as the daemon calls it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children: the kernel reaps them
    with socket.socket(fileno=int(arguments[0])) as sock, contextlib.suppress(ConnectionError):  # it died meanwhile
        serve(sock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
