"""Clients that pass a socket whose close lasts (SO_LINGER, a full buffer): nobody waits for it, however it comes."""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from broker_support import Running, ask, connected, register
from patience import LIMIT_S, wait_until

from broker.api import server as api_server
from broker.client import http
from broker.client.protocol import encode
from broker.events.log import open_log
from broker.process.closer_client import CloserClient
from broker.process.rights import Authority, Right
from broker.sessions import server
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError
from shaping.classify.pidfd_getfd import duplicate

SOON_S = LIMIT_S
"""Longer than any stall of a machine, and shorter than what the sockets linger."""
LINGER_S = int(2 * SOON_S)


class Lingering:
    """A TCP socket whose last close waits for `LINGER_S`: nobody reads what it has sent."""

    def __init__(self) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            self.sock = socket.create_connection(listener.getsockname())
            self.reader, _ = listener.accept()
        self.sent = 0
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.sent += self.sock.send(bytes(65536))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))

    def give(self, channel: socket.socket, message: bytes, *, times: int = 1) -> None:
        """Send the only descriptor of it, which its receiver has to close.

        To somebody who does not run yet: were he done before us, ours would be the close that lingers.
        """
        rights = array.array("i", [self.sock.fileno()] * times)
        channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self.sock.close()

    def all_arrives(self) -> bool:
        """Whether what was sent before the close can be read to its end: the close took nothing away."""
        self.reader.settimeout(SOON_S)
        left = self.sent
        while data := self.reader.recv(1 << 20):
            left -= len(data)
        return left == 0

    def close(self) -> None:
        self.reader.close()  # first: what is not read then resets the connection, and nothing lingers
        self.sock.close()


@pytest.fixture
def lingering() -> Iterator[Lingering]:
    with contextlib.closing(Lingering()) as found:
        yield found


WAYS: dict[str, Callable[[socket.socket, Lingering], None]] = {
    "registered": lambda channel, one: one.give(channel, encode(register())),
    "too many": lambda channel, one: one.give(channel, encode(register()), times=9),
    "very many": lambda channel, one: one.give(channel, encode(register()), times=253),
    "where none belongs": lambda channel, one: one.give(channel, encode({"op": "bye"})),
    "with garbage": lambda channel, one: one.give(channel, b"\xff"),
    "behind a goodbye": lambda channel, one: (channel.send(encode({"op": "bye"})), one.give(channel, b"{}"))[1],
}


def measure(running: Running, lingering: Lingering, other: socket.socket, act: Callable[[], None]) -> None:
    """Have it happen in one round of the loop, and see that another session is answered soon; the data arrive."""
    release = threading.Event()
    running.between_rounds(release)
    try:
        act()
    finally:
        began_s = time.monotonic()
        release.set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for _ in range(4):  # rounds: in the first one somebody is accepted, and read later
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"
    assert time.monotonic() - began_s < SOON_S
    assert lingering.all_arrives()
    assert time.monotonic() - began_s < SOON_S


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_passes_a_lingering_socket_holds_nobody_up(
    running: Running, lingering: Lingering, way: str
) -> None:
    with connected(running.sessions) as other, connected(running.sessions) as channel:
        measure(running, lingering, other, lambda: WAYS[way](channel, lingering))


@pytest.mark.parametrize(
    ("right", "sessions_max"), [(Right.NONE, 64), (Right.USE, 1), (Right.USE, 64)], ids=["outsider", "too many", "new"]
)
def test_who_is_refused_or_says_no_hello_holds_nobody_up(
    running: Running, lingering: Lingering, monkeypatch: pytest.MonkeyPatch, right: Right, sessions_max: int
) -> None:
    monkeypatch.setattr(server, "SESSIONS_PER_USER_MAX", sessions_max)
    with (
        connected(running.sessions) as other,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel,
    ):
        monkeypatch.setattr(Authority, "right_of", lambda authority, peer: right)

        def come() -> None:
            channel.connect(running.sessions)
            lingering.give(channel, b"garbage")

        measure(running, lingering, other, come)


def test_a_socket_that_waits_in_a_passed_socket_holds_nobody_up(running: Running, lingering: Lingering) -> None:
    with connected(running.sessions) as other, connected(running.sessions) as channel:

        def nest() -> None:
            inner, outer = socket.socketpair()
            with inner, outer:
                lingering.give(inner, b"x")
                socket.send_fds(channel, [encode(register())], [outer.fileno()])

        measure(running, lingering, other, nest)


def test_the_end_of_the_daemon_waits_for_no_lingering_socket(running: Running, lingering: Lingering) -> None:
    with connected(running.sessions) as channel:
        release = threading.Event()
        running.between_rounds(release)
        assert running.daemon is not None
        running.daemon.stop()
        lingering.give(channel, b"{}")
        began_s = time.monotonic()
        release.set()
        running.stop()
        assert time.monotonic() - began_s < SOON_S


def test_requests_that_carry_lingering_sockets_do_not_keep_out_who_may_change(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, take = threading.Event(), api_server._Server._take

    def take_later(server: api_server._Server) -> None:
        release.wait(60)
        take(server)

    def comes_through() -> bool:
        with contextlib.suppress(BrokerUnavailableError):  # as many at once as may be: try again
            with pytest.raises(BrokerRejectedError, match="nothing is on trial"):
                http.post("/v1/confirm", socket_path=running.api)
            return True
        return False

    with contextlib.ExitStack() as held:
        many = [held.enter_context(contextlib.closing(Lingering())) for _ in range(16)]
        monkeypatch.setattr(api_server._Server, "_take", take_later)
        try:
            for one in many:
                with socket.socket(socket.AF_UNIX) as request:
                    request.connect(running.api)
                    one.give(request, b"GET / HTTP/1.1\r\n\r\n")
        finally:
            release.set()
        began_s = time.monotonic()
        wait_until(comes_through, limit_s=SOON_S)
        assert time.monotonic() - began_s < SOON_S
        assert all(one.all_arrives() for one in many)


def test_a_duplicate_that_is_the_last_one_is_not_waited_for(lingering: Lingering) -> None:
    closing = CloserClient(log=open_log())
    closing.look()
    cookie = int(struct.unpack("=Q", lingering.sock.getsockopt(socket.SOL_SOCKET, 57, 8))[0])
    threads = threading.active_count()
    began_s = time.monotonic()
    with duplicate(
        os.getpid(), lingering.sock.fileno(), cookie=cookie, close=lambda one: closing.take([one], uid=7)
    ) as taken:
        assert taken is not None
        lingering.sock.close()
    assert threading.active_count() == threads
    assert lingering.all_arrives()
    closing.close()
    assert time.monotonic() - began_s < SOON_S


def test_a_file_is_closed_and_no_thread_to_spare_ends_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader, writer = os.pipe()
    with connected(running.sessions) as session, connected(running.sessions) as other:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            assert ask(session, register(), descriptors=(writer,))["code"] == "not-a-socket"
            os.close(writer)
            session.send(encode({"op": "nonsense"}))
        assert os.read(reader, 1) == b"", "it is closed by now"
        os.close(reader)
        assert json.loads(session.recv(1000))["code"] == "unknown-operation", "the user is read again"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"
    assert running.error is None


def test_a_file_whose_close_hangs_holds_its_user_up_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, closes, answered = CloserClient(log=open_log()), os.close, threading.Event()
    reader, writer = os.pipe()

    def close(descriptor: int) -> None:  # as one of a FUSE file, whose server has to answer first
        if descriptor == writer:
            answered.wait(60)
        closes(descriptor)

    monkeypatch.setattr(os, "close", close)
    closing.look()
    one, other = socket.socketpair()
    closing.take([writer], uid=7)
    closing.take([one.detach()], uid=8)
    assert (closing.behind(7), closing.behind(8)) == (True, False)
    other.settimeout(SOON_S)
    assert other.recv(1) == b""
    other.close()
    answered.set()
    assert os.read(reader, 1) == b""
    wait_until(lambda: not closing.behind(7), what=lambda: "a file that is closed is still waited for")
    closing.close()
    os.close(reader)


def test_a_closer_that_dies_is_started_again(running: Running, lingering: Lingering) -> None:
    assert running.daemon is not None
    closing = running.daemon._components.closing
    first = closing._process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with connected(running.sessions) as other:
        for _ in range(3):
            with connected(running.sessions):
                pass
        wait_until(lambda: closing._process.pid not in (None, first), what=lambda: closing._process.pid)
        with connected(running.sessions) as channel:
            measure(running, lingering, other, lambda: lingering.give(channel, encode(register())))
