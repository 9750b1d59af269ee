"""Clients that do not behave, and whatever else can go wrong with one session: the daemon and the others live on."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from typing import Any

import pytest
from broker_support import Running, ask, connected, register
from patience import most_of, wait_until

from broker.client import Session, request
from broker.client.protocol import encode
from broker.process.rights import Authority, Right, peer_of
from broker.sessions import server, session
from broker.sessions.messages import Announce
from broker.sessions.protocol import MESSAGES_AT_ONCE, MESSAGES_PER_S
from broker.sessions.service import SessionService
from hive_qos.errors import BrokerRejectedError

QUEUE_MAX = 1000
"""Packets that a Unix socket holds at most: its buffer of 208 KiB over the 256 bytes that the smallest takes."""


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_too_many_descriptors_end_the_session_and_none_leaks(running: Running) -> None:
    before = open_descriptors()
    for _ in range(5):
        with connected(running.sessions) as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(session, register(), descriptors=(udp.fileno(),) * 9)["code"] == "too-long"
            assert session.recv(10) == b""
        with connected(running.sessions) as session, open(os.devnull) as file:
            assert ask(session, {"op": "bye2"}, descriptors=(file.fileno(),) * 8)["code"] == "unknown-operation"
            assert ask(session, register(), descriptors=(file.fileno(),) * 8)["code"] == "not-a-socket"
    wait_until(lambda: running.status()["sessions"] == [])
    wait_until(lambda: open_descriptors() <= before)


@pytest.mark.parametrize("garbage", [b"\x00\xff" * 100, b"null", b"{" * 1000, b"x" * 80_000, b'{"op":"hello","v":9}'])
def test_garbage_gets_an_error_and_the_end_and_others_are_not_disturbed(running: Running, garbage: bytes) -> None:
    with connected(running.sessions) as other, connected(running.sessions, hello=False) as session:
        session.send(garbage)
        assert json.loads(session.recv(70_000))["op"] == "error"
        assert session.recv(10) == b""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"


def test_a_session_whose_process_and_connection_end_in_one_round_does_not_end_the_daemon(running: Running) -> None:
    program = (
        "import os, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); sock.connect(sys.argv[1])\n"
        'sock.send(b\'{"v":1,"op":"hello","client":"t","job":"j"}\'); sock.recv(1000)\n'
        "if os.fork(): print(flush=True)\n"  # the child, which holds the connection as well, outlives its parent
        "sys.stdin.read()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program, running.sessions], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdout.readline()
    wait_until(lambda: len(running.status()["sessions"]) == 1)
    release = threading.Event()
    running.between_rounds(
        release
    )  # the loop stands still meanwhile: both ends are ready in one round, the pidfd first
    client.kill()
    client.wait()
    client.stdin.close()
    assert client.stdout.read() == b""  # the child has ended, too
    client.stdout.close()
    release.set()
    wait_until(lambda: running.status()["sessions"] == [])
    assert running.error is None


def test_a_process_that_is_not_to_be_found_gets_a_clear_refusal_and_no_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "process_of", lambda sock, peer: None)  # as the kernel's answer for a reaped one
    with connected(running.sessions, hello=False) as session:
        assert json.loads(session.recv(1000))["code"] == "no-process"
        assert session.recv(10) == b""
    assert running.status()["sessions"] == []


def test_a_user_who_may_not_is_told_so_whether_he_speaks_first_or_late(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Authority, "right_of", lambda authority, peer: Right.NONE)
    release = threading.Event()
    running.between_rounds(release)
    with connected(running.sessions, hello=False) as early, connected(running.sessions, hello=False) as late:
        early.send(encode({"v": 1, "op": "hello", "client": "test", "job": "j", "pid": 1}))
        release.set()
        for one in (early, late):
            assert json.loads(one.recv(70_000))["code"] == "not-allowed"
            assert one.recv(10) == b""
        with pytest.raises(BrokenPipeError):
            late.send(b"{}")
    with Session(job="j", socket_path=running.sessions) as session:
        wait_until(lambda: any("not-allowed" in text for text in session.rejections))
    with pytest.raises(BrokerRejectedError, match="not-allowed"):
        request({"op": "enter", "class": "storage"}, socket_path=running.sessions)


def test_a_user_who_may_not_any_more_loses_the_session_that_he_has(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.daemon is not None
    with connected(running.sessions) as session:
        wait_until(lambda: len(running.status()["sessions"]) == 1)
        monkeypatch.setattr(Authority, "right_of", lambda authority, peer: Right.NONE)
        running.write(interface="eth7")
        running.daemon.reload()
        told = json.loads(session.recv(70_000))
        while told["op"] != "error":
            told = json.loads(session.recv(70_000))
        assert told["code"] == "not-allowed"
        assert session.recv(10) == b""


def test_a_session_that_is_ended_for_one_packet_hears_why_though_it_sent_others(running: Running) -> None:
    release = threading.Event()
    running.between_rounds(release)
    with connected(running.sessions, hello=False) as session:
        for packet in (b"null", b"{}", b"{}"):
            session.send(packet)
        release.set()
        assert json.loads(session.recv(70_000))["op"] == "error"
        assert session.recv(10) == b""


def test_who_never_says_hello_is_told_why_it_ends(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_TIMEOUT_S", 0.05)
    with connected(running.sessions, hello=False) as session:
        assert json.loads(session.recv(70_000))["code"] == "no-hello"
        assert session.recv(10) == b""


def test_a_session_that_cannot_be_watched_is_ended_and_the_daemon_lives_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = selectors.EpollSelector.register

    def full(selector: selectors.EpollSelector, one: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if isinstance(one, socket.socket) and one.type == socket.SOCK_SEQPACKET:
            raise OSError(28, "No space left on device")
        return register(selector, one, events, data)

    with monkeypatch.context() as patch:
        patch.setattr(selectors.EpollSelector, "register", full)
        with connected(running.sessions, hello=False) as session:
            assert session.recv(10) == b""
    with connected(running.sessions):
        assert running.error is None


def test_one_user_does_not_take_all_sessions(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SESSIONS_PER_USER_MAX", 3)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(running.sessions))
        refused = stack.enter_context(connected(running.sessions, hello=False))
        assert json.loads(refused.recv(1000))["text"] == "at most 3 sessions of one user"
        assert refused.recv(10) == b""


def test_a_mistake_of_ours_ends_the_session_that_met_it_and_not_the_daemon(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("as it could be")

    with connected(running.sessions) as session, connected(running.sessions) as other:
        monkeypatch.setattr(SessionService, "report", broken)
        assert ask(session, {"op": "report", "connections": []})["code"] == "internal"
        assert session.recv(10) == b""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"


def test_a_flooding_client_is_slowed_down_and_nothing_else_is(running: Running) -> None:
    with (
        connected(running.sessions) as flood,
        connected(running.sessions) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        flood.setblocking(False)
        packet = encode({"op": "report", "connections": []})
        began_s, sent = time.monotonic(), 0

        def fill() -> None:
            nonlocal sent
            with contextlib.suppress(BlockingIOError):
                while sent < 100_000:
                    flood.send(packet)
                    sent += 1

        def waiting_after_the_others_answer() -> int:
            """Bytes of the flood that the broker had not read when it answered somebody else."""
            fill()
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"
            return struct.unpack("i", fcntl.ioctl(flood, termios.TIOCOUTQ, bytes(4)))[0]

        most_of(waiting_after_the_others_answer, lambda found: found > 0)  # a stall of a second empties it
        while time.monotonic() < began_s + 1.0:
            fill()
        read_max = MESSAGES_AT_ONCE + MESSAGES_PER_S * (time.monotonic() - began_s)
        assert sent <= read_max + QUEUE_MAX, "it is read as fast as it floods"


def test_what_one_users_sessions_queue_together_is_read_in_turn_with_anothers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions queue bursts with many destinations; another user's session is answered before most are read."""
    read: list[str] = []
    release = threading.Event()
    announce = SessionService.announce

    def counted(service: SessionService, one: session.Session, message: Announce) -> None:
        read.append(one.name)
        announce(service, one, message)

    monkeypatch.setattr(SessionService, "announce", counted)
    with contextlib.ExitStack() as held:
        flood = [held.enter_context(connected(running.sessions)) for _ in range(30)]
        own = peer_of(flood[0])  # this process, at both ends
        with monkeypatch.context() as patch:
            patch.setattr(Authority, "right_of", lambda authority, peer: Right.USE)
            patch.setattr(server, "peer_of", lambda sock: dataclasses.replace(own, uid=own.uid + 1))
            other = held.enter_context(connected(running.sessions))
        running.between_rounds(release)
        destinations = {f"127.0.{one // 256}.{one % 256}": 1000 for one in range(1024)}
        burst = encode({"op": "burst", "job": "j", "step": 1, "bytes": destinations, "deadline_s": 60.0})
        for session in flood * 5:
            session.setblocking(False)  # else Python waits until three quarters of the buffer are free
            session.send(burst)
        release.set()
        assert ask(other, {"op": "enter", "id": 1, "class": "nonsense"})["op"] == "error"
        assert len(read) < len(flood) * 5 / 4  # a quiet machine has read seven bursts by now
        wait_until(lambda: len(read) == len(flood) * 5)
    assert len(set(read[: len(read) // 2])) == len(flood), (
        "sessions of one user waited for others to be read to the end"
    )


def test_a_client_that_does_not_read_is_ended(running: Running) -> None:
    with connected(running.sessions) as session:
        for _ in range(3000):
            try:
                session.send(encode({"op": "enter", "id": 1, "class": "nonsense"}))
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                break
        wait_until(lambda: running.status()["sessions"] == [])
