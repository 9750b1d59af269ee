"""The finder's process: it tells of sockets and gives those of IP, and whatever becomes of it nobody waits long."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from patience import LIMIT_S, wait_until

from broker.events.log import open_log
from broker.process import socket_finder_client
from broker.process.socket_finder import ANSWER, BYTES_MAX, LAST, MORE, SOCKETS_AT_ONCE, serve
from broker.process.socket_finder_client import ANSWER_S, SocketFinder
from shaping.classify.socket_priority import priority_of

SO_COOKIE = 57
HOLDER = """
import os, socket, sys
held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(sys.argv[1]))]
unix = socket.socketpair()
held[0].setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
print(held[0].fileno(), unix[0].fileno(), *(os.fstat(one.fileno()).st_ino for one in held), flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process of the same user, with sockets."""

    def __init__(self, count: int) -> None:
        argv = [sys.executable, "-c", HOLDER, str(count)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.inet, self.unix, *inodes = map(int, self.process.stdout.readline().split())
        self.inodes, self.pid = set(inodes), self.process.pid

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketFinder]:
    # pytest keeps its capabilities; tests/lab looks at those of a daemon.
    monkeypatch.setattr(socket_finder_client, "drop_capability", lambda number: None)
    made = SocketFinder(log=open_log())
    made.start()
    yield made
    made.close()


@pytest.fixture
def holder() -> Iterator[Holder]:
    with closing(Holder(SOCKETS_AT_ONCE + 50)) as made:
        yield made


def process_of(finder: SocketFinder) -> int:
    assert finder._process.pid is not None
    return finder._process.pid


def cookie_of(pid: int, descriptor: int) -> int:
    from shaping.classify.pidfd_getfd import _taken

    found = _taken(pid, descriptor)
    assert found is not None
    with socket.socket(fileno=found) as sock:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


def test_all_sockets_of_a_process_are_listed_however_many_and_whoever_stopped_listening(
    finder: SocketFinder, holder: Holder
) -> None:
    for _ in finder.sockets_of(holder.pid):
        break
    assert holder.inodes <= {inode for _, inode in finder.sockets_of(holder.pid)}
    assert list(finder.sockets_of(2**22 + 1)) == []  # no such process


def test_lists_of_two_processes_can_be_read_in_turns_and_sockets_be_had_meanwhile(
    finder: SocketFinder, holder: Holder
) -> None:
    cookie = cookie_of(holder.pid, holder.inet)
    listed: tuple[set[int], set[int]] = set(), set()
    for (_, one), (_, other) in zip(finder.sockets_of(holder.pid), finder.sockets_of(holder.pid), strict=True):
        listed[0].add(one)
        listed[1].add(other)
        if len(listed[0]) in (1, SOCKETS_AT_ONCE):
            with finder.duplicate(holder.pid, holder.inet, cookie=cookie, close=os.close) as sock:
                assert sock is not None
    assert all(holder.inodes <= inodes for inodes in listed)


def test_lists_take_turns_page_by_page_and_one_that_is_not_wanted_any_more_ends(holder: Holder) -> None:
    daemon, finder = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with finder, ThreadPoolExecutor() as pool:
        with daemon:
            daemon.settimeout(LIMIT_S)
            for number in (1, 2, 3, 4):
                daemon.send(b"s %d %d" % (number, holder.pid))
            daemon.send(b"e 2")
            served = pool.submit(serve, finder)
            got = [ANSWER.unpack_from(daemon.recv(BYTES_MAX)) for _ in range(10)]
        served.result(LIMIT_S)
    assert got == [(0, LAST), *((number, kind) for kind in (MORE, MORE, LAST) for number in (1, 3, 4))]


def test_who_stops_reading_a_list_says_so_and_who_has_read_it_does_not() -> None:
    asking = SocketFinder(log=open_log())
    asking._sock, finder = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with finder:
        for number, kind in ((1, MORE), (2, LAST)):
            finder.send(ANSWER.pack(number, kind) + struct.pack("=QQ", 3, 4711))
            for found in asking.sockets_of(7):
                assert found == (3, 4711)
                break
        asking.close()
        assert list(iter(lambda: finder.recv(BYTES_MAX), b"")) == [b"s 1 7", b"e 1", b"s 2 7"]


def test_a_socket_of_ip_is_given_and_no_other(finder: SocketFinder, holder: Holder) -> None:
    cookie = cookie_of(holder.pid, holder.inet)
    with finder.duplicate(holder.pid, holder.inet, cookie=cookie, close=os.close) as sock:
        assert sock is not None
        assert priority_of(sock) == 5
    with finder.duplicate(holder.pid, holder.inet, cookie=cookie + 1, close=os.close) as sock:
        assert sock is None
    for descriptor in (holder.unix, 1, 4711):
        cookie = cookie_of(holder.pid, descriptor) if descriptor == holder.unix else 0
        with finder.duplicate(holder.pid, descriptor, cookie=cookie, close=os.close) as sock:
            assert sock is None


def test_one_that_stands_still_is_waited_for_a_moment_and_its_late_answers_are_dropped(
    finder: SocketFinder, holder: Holder
) -> None:
    os.kill(process_of(finder), signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(PermissionError, match="in time"):
        list(finder.sockets_of(holder.pid))
    with (
        pytest.raises(PermissionError, match="in time"),
        finder.duplicate(holder.pid, holder.inet, cookie=1, close=os.close),
    ):
        pass
    assert time.monotonic() - began_s >= 2 * ANSWER_S
    assert finder.cpu_s() >= 2 * ANSWER_S
    os.kill(process_of(finder), signal.SIGCONT)

    def listed() -> bool:
        try:
            return bool(holder.inodes <= {inode for _, inode in finder.sockets_of(holder.pid)})
        except PermissionError:  # not yet
            return False

    wait_until(listed)


def test_one_that_died_finds_nothing_more(finder: SocketFinder, holder: Holder) -> None:
    os.kill(process_of(finder), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(PermissionError, match="has ended"):
            list(finder.sockets_of(holder.pid))


def test_one_that_cannot_be_started_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_finder_client, "drop_capability", lambda number: None)
    for command in (("/nonexistent/python",), ("/bin/false",)):
        finder = SocketFinder(log=open_log(), command=command)
        finder.start()
        with pytest.raises(PermissionError, match="has ended"):
            list(finder.sockets_of(os.getpid()))
        finder.close()
