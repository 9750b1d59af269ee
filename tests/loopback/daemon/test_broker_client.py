"""The session library of programs: the broker may be absent, die, come back or be an impostor, and a fork is inert."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest
from broker_support import Running
from patience import LIMIT_S, wait_until

from broker import client
from broker.client import Session, SessionState
from broker.client.exchange import ask
from broker.client.protocol import decode, encode
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError


def test_a_session_survives_absence_and_death_of_the_broker_and_registers_again(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write()
    with (
        Session(job="j", socket_path=running.sessions) as session,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone,
    ):
        session.register(udp, traffic_class="compute", role="gradient")
        session.register(gone, traffic_class="compute", role="gradient")
        gone.close()
        session.announce(step=1, bytes_by_destination={"127.0.0.1": 10}, deadline_s=60.0)
        for _ in range(2):
            running.start()
            wait_until(lambda: len(session.flows) == 1)
            assert session.state is SessionState.CONNECTED
            running.stop()
            wait_until(lambda: session.state is SessionState.CONNECTING)
            assert session.flows == ()
        assert running.marks == 2 * [(0x230, 18)]
        assert session.reconnects == 2
    assert session.state is SessionState.CLOSED


def test_a_session_has_256_sockets_at_once_and_any_number_one_after_the_other(running: Running) -> None:
    def sockets() -> int:
        return sum(flow["kind"] == "socket" for flow in running.status()["flows"])

    with Session(job="j", socket_path=running.sessions) as session, contextlib.ExitStack() as stack:
        wait_until(lambda: session.state is SessionState.CONNECTED)
        for count in range(1, 301):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                assert session.register(udp, traffic_class="compute", role="bulk"), count
                wait_until(lambda: len(session.flows) == 1)
        wait_until(lambda: sockets() == 1)
        for _ in range(255):
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            number = session.register(udp, traffic_class="compute", role="bulk")
        assert session.register(udp, traffic_class="compute", role="bulk")
        assert session.register(udp, traffic_class="compute", role="bulk") == 0
        assert session.rejections == ("too-many: a session has at most 256 sockets at once",)
        session.unregister(number)
        assert session.register(udp, traffic_class="compute", role="bulk")
        wait_until(lambda: len(session.flows) == 256)
        wait_until(lambda: sockets() == 256)  # the status is as of the last tick


def test_a_refusal_that_came_before_we_spoke_is_read_all_the_same() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        theirs.send(b'{"op": "error", "code": "not-allowed", "text": "not you"}')
        theirs.close()
        assert ask(ours, {"op": "hello"})["code"] == "not-allowed"
        with pytest.raises(ConnectionResetError, match="without an answer"):
            ask(ours, {"op": "hello"})


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads is what is tested
def test_a_forked_child_does_not_speak_in_its_parents_session(running: Running) -> None:
    with Session(job="j", socket_path=running.sessions) as session:
        wait_until(lambda: session.state is SessionState.CONNECTED)
        reader, writer = os.pipe()
        # A child of fork() alone: what a data loader's worker is.
        child = os.fork()
        if child == 0:
            os.close(reader)
            session.announce(step=1, bytes_by_destination={"127.0.0.1": 1}, deadline_s=1.0)
            session.close()
            os.write(writer, session.state.value.encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        assert os.read(reader, 100) in (b"off", b"closed")
        os.close(reader)
        assert session.state is SessionState.CONNECTED
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            session.register(udp, traffic_class="compute", role="gradient")
            wait_until(lambda: len(session.flows) == 1)


def test_a_session_that_is_switched_off_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_BROKER", "off")
    before = set(threading.enumerate())
    with Session(job="j") as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        assert session.register(udp, traffic_class="compute", role="gradient") == 0
        session.announce(step=1, bytes_by_destination={"10.0.0.1": 1}, deadline_s=1.0)
        assert session.state is SessionState.OFF
        assert set(threading.enumerate()) <= before
    with pytest.raises(BrokerUnavailableError, match="HIVE_BROKER=off"):
        client.request({"op": "enter", "class": "storage"})


def test_no_client_speaks_to_another_users_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.trust.listener_of", lambda sock: 4242)
    path = str(tmp_path / "session.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(LIMIT_S)
        listener.bind(path)
        listener.listen()
        with pytest.raises(BrokerRejectedError, match="user 4242 listens there"):
            client.request({"op": "enter", "class": "storage"}, socket_path=path)
        with Session(job="j", socket_path=path) as session:
            for _ in range(2):  # the request's connection and the session's
                accepted, _ = listener.accept()
                with accepted:
                    accepted.settimeout(LIMIT_S)
                    assert accepted.recv(1000) == b""
            assert session.state is SessionState.CONNECTING


def test_an_announcement_has_left_when_the_call_returns_and_the_next_ones_keep_their_order(tmp_path: Path) -> None:
    """The program's next act is to send, on all processors: a thread that wakes then is late."""
    path = str(tmp_path / "session.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(LIMIT_S)
        listener.bind(path)
        listener.listen()
        with Session(job="j", socket_path=path) as session:
            broker, _ = listener.accept()
            with broker:
                broker.settimeout(LIMIT_S)
                assert decode(broker.recv(1000))["op"] == "hello"
                broker.send(encode({"op": "welcome", "v": 1, "session": "s-1", "host": "h"}))
                wait_until(lambda: session.state is SessionState.CONNECTED)
                for step in (1, 2):
                    session.announce(step=step, bytes_by_destination={"10.0.0.1": 10}, deadline_s=1.0)
                    said = decode(broker.recv(1000, socket.MSG_DONTWAIT))  # raises where nothing is there yet
                    assert (said["op"], said["step"]) == ("burst", step)
                full = 0
                while session.state is SessionState.CONNECTED and not session._box.bursts:
                    session.announce_end(step=full)
                    full += 1
                session.announce_end(step=full)  # waits behind the one that the broker did not take
                heard = [decode(broker.recv(1000))["step"] for _ in range(full + 1)]
                assert heard == list(range(full + 1))
