"""The socket finder: a small process that looks into other processes for the daemon, which may not.

    daemon --"s NUMBER PID"------------------------> finder    which sockets a process holds
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
    """Say that we are there, and answer until the other end closes."""
    sock.send(ANSWER.pack(0, LAST))
    while question := sock.recv(BYTES_MAX):
        _answer(sock, question)


def _answer(sock: socket.socket, question: bytes) -> None:
    word, number, pid, *rest = question.split()
    if word == b"s":
        _list(sock, int(number), int(pid))
    else:
        _give(sock, int(number), int(pid), *map(int, rest))


def _list(sock: socket.socket, number: int, pid: int) -> None:
    """Answers what is asked meanwhile between two pages: the daemon waits for that, and reads a list in slices."""
    held = sockets_of(pid)
    next_question = select.poll()
    next_question.register(sock, select.POLLIN)
    try:
        while page := list(itertools.islice(held, SOCKETS_AT_ONCE)):
            sock.send(ANSWER.pack(number, MORE) + array("Q", itertools.chain.from_iterable(page)).tobytes())
            if next_question.poll(0) and (question := sock.recv(BYTES_MAX)):
                _answer(sock, question)
    except PermissionError:
        sock.send(ANSWER.pack(number, DENIED))
    else:
        sock.send(ANSWER.pack(number, LAST))


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
