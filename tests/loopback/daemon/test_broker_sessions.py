"""Sessions with the daemon: sockets are marked, bursts and measurements arrive, and all of it ends with its session."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from broker_support import Running, ask, connected, register
from patience import wait_until

from broker.client import Session
from broker.client.protocol import encode
from broker.process import rights
from shaping.classify.socket_priority import mark_socket
from shaping.model.names import JOB_MINOR, MARK_MINOR

IPPROTO_MPTCP = 262  # the socket module of Python 3.11 does not know it everywhere


def sockets(running: Running) -> list[dict[str, Any]]:
    """Those that sessions passed: other tests' connections are in this network namespace, too."""
    return [flow for flow in running.status()["flows"] if flow["kind"] == "socket"]


def test_sockets_are_marked_by_class_and_role_and_listed(running: Running) -> None:
    with (
        connected(running.sessions) as session,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tcp,
    ):
        answer = ask(session, register(7), descriptors=(udp.fileno(), tcp.fileno()))
        assert (answer["op"], answer["id"], len(answer["flows"])) == ("registered", 7, 2)
        ask(session, register(8, role="bulk"), descriptors=(udp.fileno(),))
        ask(session, register(9, "storage", "storage"), descriptors=(tcp.fileno(),))
        job = JOB_MINOR[0]  # of the only job there is
        assert running.marks == [(job, 18), (job, 18), (0x220, 8), (MARK_MINOR["storage"], 1)]
        wait_until(lambda: len(sockets(running)) == 4)
        assert {flow["protocol"] for flow in sockets(running)} == {"udp", "tcp"}
    wait_until(lambda: sockets(running) == [])


def test_a_descriptor_that_is_no_internet_socket_is_refused_and_the_session_lives_on(running: Running) -> None:
    with connected(running.sessions) as session, open(os.devnull) as file:
        assert ask(session, register(1), descriptors=(file.fileno(),))["code"] == "not-a-socket"
        assert ask(session, register(2), descriptors=(session.fileno(),))["code"] == "not-inet"
        assert ask(session, register(3))["code"] == "no-descriptor"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(session, register(4), descriptors=(udp.fileno(),))["op"] == "registered"


def test_a_multipath_socket_over_ipv6_is_answered_and_not_the_end(tmp_path: Path) -> None:
    running = Running(tmp_path, mark=mark_socket)
    running.write()
    running.start()
    try:
        with (
            connected(running.sessions) as session,
            socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP) as multipath,
        ):
            assert ask(session, register(), descriptors=(multipath.fileno(),))["op"] in ("error", "registered")
            assert running.status()["schema"] == 1
    finally:
        running.stop()
    assert running.error is None


def test_a_session_announces_for_its_own_job_alone(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "k", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        assert ask(session, burst)["code"] == "bad-field"
        session.send(encode({**burst, "job": "j"}))
        (job,) = wait_until(lambda: running.status()["jobs"])
        assert job["job"] == "j"


def test_a_client_that_goes_away_in_the_middle_takes_its_burst_with_it(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        session.send(encode(burst))
        wait_until(lambda: [job["bursts"][0]["step"] for job in running.status()["jobs"] if job["bursts"]] == [7])
    wait_until(lambda: running.status()["jobs"] == [])


def test_reports_of_who_has_sockets_cross_to_the_measurements_of_their_interface(running: Running) -> None:
    with (
        Session(job="j", socket_path=running.sessions) as session,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        session.register(udp, traffic_class="storage", role="storage")
        wait_until(lambda: len(session.flows) == 1)
        session.report([{"peer": "127.0.0.1:4242", "rtt_s": 0.004, "rtt_s_min": 0.003, "class": "compute"}])
        wait_until(lambda: any(flow.get("rtt_s") == 0.004 for flow in running.status()["flows"]))
        (flow,) = [flow for flow in running.status()["flows"] if flow["kind"] == "connection"]
        assert (flow["interface"], flow["class"], flow["peer"]) == ("lo", "storage", "127.0.0.1")


def test_a_pidfd_is_of_the_process_that_connected_and_there_is_none_for_one_that_cannot_be_seen() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        peer = rights.peer_of(ours)
        descriptor = rights.process_of(ours, peer)
        assert descriptor is not None
        assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        os.close(descriptor)
        assert rights.process_of(ours, dataclasses.replace(peer, pid=0)) is None


def test_a_lack_of_descriptors_is_not_taken_for_a_process_that_is_gone() -> None:
    class Short(socket.socket):
        """A socket of a process that has no descriptor to spare."""

        def getsockopt(self, *_: int) -> int:  # type: ignore[override]
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Short(socket.AF_UNIX) as sock, pytest.raises(OSError, match="Too many open files"):
        rights.process_of(sock, rights.Peer(pid=os.getpid(), uid=0, groups=frozenset()))
