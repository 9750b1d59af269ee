"""The daemon over real Unix sockets, with a kernel in memory: clients that behave, clients that do not, and ends."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import gc
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker import client
from broker.client import Session, SessionState
from broker.client.protocol import encode
from broker.config import load
from broker.daemon import authority, http_api, sessions
from broker.daemon.daemon import Daemon, Options
from broker.daemon.hub import SessionHub
from broker.daemon.log import open_log
from broker.daemon.notify import Notifier
from broker.daemon.shapes import shape_of
from broker.decide import decide
from broker.model import Measurements, State
from broker.record import replay
from hive_qos.errors import (
    BrokerRejectedError,
    BrokerUnavailableError,
    ConfigurationError,
    PrivilegeError,
    ShapingError,
)
from shaping.fake import FakeClassifier, FakeKernel
from shaping.journal import Journal
from shaping.model import InterfaceShape
from shaping.shaper import Shaper
from shaping.sockets import mark_socket

IPPROTO_MPTCP = 262  # the socket module of Python 3.11 does not know it everywhere

CONFIGURATION = """
version = 1
[[interface]]
name = "{interface}"
egress = "40 Mbit/s"
[daemon]
tick = "20 ms"
group = "no-such-group"
admin_group = "no-such-group"
state_dir = "{folder}/state"
api_socket = "{folder}/run/broker.sock"
session_socket = "{folder}/run/session.sock"
record_file = "{folder}/record.jsonl"
"""


@dataclass
class Running:
    """A daemon in a thread of this process."""

    folder: Path
    kernel: FakeKernel = field(default_factory=lambda: FakeKernel(["lo", "eth7"]))
    marks: list[tuple[int, int | None]] = field(default_factory=list)
    error: Exception | None = None
    daemon: Daemon | None = None
    thread: threading.Thread | None = None
    notifier: Notifier = field(default_factory=lambda: Notifier({}))
    mark: Callable[..., None] | None = None

    @property
    def sessions(self) -> str:
        return str(self.folder / "run/session.sock")

    @property
    def api(self) -> str:
        return str(self.folder / "run/broker.sock")

    def write(self, text: str = CONFIGURATION, *, interface: str = "lo") -> None:
        (self.folder / "broker.toml").write_text(text.format(folder=self.folder, interface=interface))

    def start(self) -> None:
        def mark(sock: socket.socket, *, minor: int, dscp: int | None) -> None:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                raise ValueError("an AF_UNIX socket")
            self.marks.append((minor, dscp))

        def run(daemon: Daemon) -> None:
            try:
                daemon.run()
            except Exception as problem:  # noqa: BLE001 - a test looks at whatever it is
                self.error = problem

        options = Options(load_policy=lambda: load((self.folder / "broker.toml").read_text()))
        self.daemon = Daemon(options, kernel=self.kernel, classifier=FakeClassifier(), log=open_log(),
                             mark=self.mark or mark,
                             notifier=self.notifier)  # fmt: skip
        self.thread = threading.Thread(target=run, args=(self.daemon,))
        self.thread.start()
        wait_until(lambda: self.error is not None or self.answers())

    def answers(self) -> bool:
        with contextlib.suppress(BrokerUnavailableError):
            return bool(self.status())
        return False

    def between_rounds(self, release: threading.Event) -> None:
        """Hold the loop, until `release`, at a point where it has asked for no descriptor."""
        held = threading.Event()
        assert self.daemon is not None

        def hold() -> None:
            held.set()
            release.wait(10)

        self.daemon._reload = hold  # type: ignore[method-assign]
        self.daemon.reload()
        assert held.wait(10)

    def status(self) -> dict[str, Any]:
        return client.status(self.api)

    def stop(self) -> None:
        if self.daemon is not None and self.thread is not None:
            self.daemon.stop()
            self.thread.join(10)
            assert not self.thread.is_alive()
            self.daemon = self.thread = None


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.write()
    running.start()
    assert running.error is None
    yield running
    running.stop()


@contextlib.contextmanager
def connected(path: str, *, hello: bool = True) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(5)
        sock.connect(path)
        if hello:
            assert ask(sock, {"v": 1, "op": "hello", "client": "test", "job": "j", "pid": 1})["op"] == "welcome"
        yield sock


def ask(sock: socket.socket, message: dict[str, Any], *, descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([encode(message)], rights)
    answer = json.loads(sock.recv(70_000))
    assert isinstance(answer, dict)
    return answer


def register(number: int = 1, traffic_class: str = "compute", role: str = "gradient") -> dict[str, Any]:
    return {"op": "register", "id": number, "class": traffic_class, "role": role}


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


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
        assert running.marks == [(0x210, 18), (0x210, 18), (0x220, 8), (0x310, 1)]
        wait_until(lambda: len(running.status()["flows"]) == 4)
        assert {flow["protocol"] for flow in running.status()["flows"]} == {"udp", "tcp"}
    wait_until(lambda: running.status()["flows"] == [])


def test_a_descriptor_that_is_no_internet_socket_is_refused_and_the_session_lives_on(running: Running) -> None:
    with connected(running.sessions) as session, open(os.devnull) as file:
        assert ask(session, register(1), descriptors=(file.fileno(),))["code"] == "not-a-socket"
        assert ask(session, register(2), descriptors=(session.fileno(),))["code"] == "not-inet"
        assert ask(session, register(3))["code"] == "no-descriptor"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(session, register(4), descriptors=(udp.fileno(),))["op"] == "registered"


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


def test_a_session_announces_for_its_own_job_alone(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "k", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        assert ask(session, burst)["code"] == "bad-field"
        assert ask(session, {**burst, "job": "j"})["op"] == "credited"


def test_a_client_that_goes_away_in_the_middle_takes_its_burst_with_it(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        credited = ask(session, burst)
        assert (credited["op"], credited["id"]) == ("credited", 2)
        wait_until(lambda: [job["bursts"][0]["step"] for job in running.status()["jobs"] if job["bursts"]] == [7])
    wait_until(lambda: running.status()["jobs"] == [])


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
    monkeypatch.setattr(sessions, "process_of", lambda sock, peer: None)  # as the kernel's answer for a reaped one
    with connected(running.sessions, hello=False) as session:
        assert json.loads(session.recv(1000))["code"] == "no-process"
        assert session.recv(10) == b""
    assert running.status()["sessions"] == []


def test_a_pidfd_is_of_the_process_that_connected_and_there_is_none_for_one_that_cannot_be_seen() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        peer = authority.peer_of(ours)
        descriptor = authority.process_of(ours, peer)
        assert descriptor is not None
        assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        os.close(descriptor)
        assert authority.process_of(ours, dataclasses.replace(peer, pid=0)) is None


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


def test_no_client_speaks_to_another_users_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.trust.listener_of", lambda sock: 4242)
    path = str(tmp_path / "session.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(5)
        listener.bind(path)
        listener.listen()
        with pytest.raises(BrokerRejectedError, match="user 4242 listens there"):
            client.request({"op": "enter", "class": "storage"}, socket_path=path)
        with Session(job="j", socket_path=path) as session:
            for _ in range(2):  # the request's connection and the session's
                accepted, _ = listener.accept()
                with accepted:
                    accepted.settimeout(5)
                    assert accepted.recv(1000) == b""
            assert session.state is SessionState.CONNECTING


def test_one_user_does_not_take_all_sessions(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_PER_USER_MAX", 3)
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
        monkeypatch.setattr(SessionHub, "report", broken)
        assert ask(session, {"op": "report", "connections": []})["code"] == "internal"
        assert session.recv(10) == b""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"


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


def test_a_flooding_client_is_slowed_down_and_nothing_else_is(running: Running) -> None:
    with connected(running.sessions) as flood, connected(running.sessions) as other:
        flood.setblocking(False)
        packet = encode({"op": "report", "connections": []})
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                flood.send(packet)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            started_s = time.monotonic()
            assert ask(other, register(), descriptors=(udp.fileno(),))["op"] == "registered"
            assert time.monotonic() - started_s < 1.0


def test_a_client_that_does_not_read_is_ended(running: Running) -> None:
    with connected(running.sessions) as session:
        for _ in range(3000):
            try:
                session.send(encode({"op": "enter", "id": 1, "class": "nonsense"}))
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                break
        wait_until(lambda: running.status()["sessions"] == [], timeout_s=20)


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
        assert running.marks == [(0x210, 18), (0x210, 18)]
        assert session.reconnects == 2
    assert session.state is SessionState.CLOSED


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
    before = threading.active_count()
    with Session(job="j") as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        assert session.register(udp, traffic_class="compute", role="gradient") == 0
        session.announce(step=1, bytes_by_destination={"10.0.0.1": 1}, deadline_s=1.0)
        assert session.state is SessionState.OFF
        assert threading.active_count() == before
    with pytest.raises(BrokerUnavailableError, match="HIVE_BROKER=off"):
        client.request({"op": "enter", "class": "storage"})


def http_request(path: str, method: str, target: str, body: bytes | None = None) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5)
    connection.sock.connect(path)
    try:
        with contextlib.suppress(BrokenPipeError):  # refused before the body was read; the answer is there all the same
            connection.request(method, target, body=body)
        answer = connection.getresponse()
        answer.read()
        return answer.status, dict(answer.headers)
    finally:
        connection.close()


def test_the_http_socket_reads_and_changes_nothing(running: Running) -> None:
    for target in ("/v1/status", "/v1/policy", "/v1/flows", "/metrics"):
        assert http_request(running.api, "GET", target)[0] == 200
    assert http_request(running.api, "GET", "/v1/nothing")[0] == 404
    status, headers = http_request(running.api, "PUT", "/v1/policy", b"x" * 1000)
    assert (status, headers["Allow"]) == (405, "GET")
    assert http_request(running.api, "DELETE", "/v1/status")[0] == 405
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as broken:
        slow.connect(running.api)
        slow.send(b"GET /v1/sta")
        broken.connect(running.api)
        broken.send(b"\x00\xff\r\n\r\n")
        assert b"400" in broken.recv(1000)
        assert running.status()["schema"] == 1


def test_http_requests_that_never_end_are_ended_and_too_many_are_turned_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_api, "REQUEST_TIMEOUT_S", 0.3)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(http_api.REQUESTS_AT_ONCE + 4)]
        for sock in slow:
            sock.settimeout(5)
            sock.connect(running.api)
        for sock in slow:
            with contextlib.suppress(ConnectionError):  # turned away: closed at once
                sock.send(b"GET /v1/sta")
                assert sock.recv(1000) == b""
    assert running.status()["schema"] == 1


def test_watching_ends_with_130_at_ctrl_c(running: Running) -> None:
    command = [sys.executable, "-c", "from broker.cli import main; main()", "status", "--watch", "--json", "-s"]
    with subprocess.Popen([*command, running.api], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["schema"] == 1
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=10)
    assert (watching.returncode, errors) == (130, b"")


def test_status_has_the_documented_form(running: Running) -> None:
    document = running.status()
    assert {"schema", "host", "interfaces", "flows", "jobs", "alarms"} <= set(document)
    (interface,) = document["interfaces"]
    assert (interface["name"], interface["direction"]) == ("lo", "egress")
    assert interface["capacity_bits_per_s"] > 0
    assert interface["capacity_source"] == "configured"
    names = [entry["name"] for entry in interface["classes"]]
    assert names == ["control", "compute", "storage", "other"]
    for entry in interface["classes"]:
        assert {
            "guarantee_bits_per_s", "floor_bits_per_s", "ceiling_bits_per_s", "demand_bits_per_s",
            "throughput_bits_per_s", "backlog_bytes", "dropped_packets",
        } <= set(entry)  # fmt: skip
        assert set(entry["reason"]) == {"code", "text"}


def test_a_reload_takes_a_good_configuration_and_keeps_the_last_good_one(running: Running) -> None:
    assert running.daemon is not None
    running.write(interface="eth7")
    running.daemon.reload()
    wait_until(lambda: [entry["name"] for entry in running.status()["interfaces"]] == ["eth7"])
    assert running.kernel.observe("lo") is None
    for bad in ("version = 1\n", CONFIGURATION + "[class.storage]\nguarantee = '101 %'\n"):
        running.write(bad, interface="eth7")
        running.daemon.reload()
        wait_until(lambda: [alarm["code"] for alarm in running.status()["alarms"]] == ["configuration-rejected"])
        assert running.kernel.observe("eth7") is not None
        running.write(interface="eth7")
        running.daemon.reload()
        wait_until(lambda: running.status()["alarms"] == [])
    running.write(interface="eth9")
    running.daemon.reload()
    wait_until(lambda: "eth9" in str(running.status()["alarms"]))
    assert running.kernel.observe("eth7") is not None


def test_a_reload_that_the_kernel_does_not_take_leaves_the_last_good_one_and_an_alarm(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.daemon is not None

    def refuse(shaper: Shaper, shape: InterfaceShape) -> None:
        raise ValueError("a shape that cannot be")

    with monkeypatch.context() as patch:
        patch.setattr(Shaper, "apply", refuse)
        running.write(CONFIGURATION.replace("40 Mbit/s", "10 Mbit/s"))
        running.daemon.reload()
        wait_until(lambda: "a shape that cannot be" in str(running.status()["alarms"]))
    assert running.status()["interfaces"][0]["capacity_bits_per_s"] > 30e6
    running.daemon.reload()
    wait_until(lambda: running.status()["interfaces"][0]["capacity_bits_per_s"] <= 10e6)


def test_an_interface_that_is_not_there_is_an_alarm_and_is_shaped_when_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.daemon.daemon.LOOK_S", 0.05)
    late = FakeKernel(["lo", "eth7"])
    running = Running(tmp_path, kernel=late)
    there = ["lo"]
    monkeypatch.setattr(late, "interfaces", lambda: tuple(there))
    running.write(CONFIGURATION + '[[interface]]\nname = "eth7"\negress = "8 Mbit/s"\n')
    running.start()
    try:
        alarms = running.status()["alarms"]
        assert [alarm["subject"] for alarm in alarms if alarm["code"] == "interface-missing"] == ["eth7"]
        assert late.observe("eth7") is None
        there.append("eth7")
        wait_until(lambda: "interface-missing" not in str(running.status()["alarms"]))
        assert late.observe("eth7") is not None
    finally:
        running.stop()
    assert late.observe("eth7") is None


def test_an_interface_that_policy_does_not_name_any_more_is_given_back_at_the_next_start(tmp_path: Path) -> None:
    kernel = FakeKernel(["lo", "eth7"])
    running = Running(tmp_path, kernel=kernel)
    running.write(interface="eth7")
    journal = Journal(tmp_path / "state")
    former = Shaper(kernel, journal)
    policy = load((tmp_path / "broker.toml").read_text())
    allocation = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=policy).allocation
    former.attach(shape_of(allocation.interfaces[0], rules=()))  # and the daemon was killed
    running.write(interface="lo")
    running.start()
    try:
        assert kernel.observe("eth7") is None
        assert journal.interfaces() == ("lo",)
    finally:
        running.stop()


def test_a_stop_gives_every_interface_back_that_it_can_and_says_what_it_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path)
    running.write(CONFIGURATION + '[[interface]]\nname = "eth7"\negress = "8 Mbit/s"\n')
    running.start()
    detach = Shaper.detach

    def fail(shaper: Shaper, interface: str) -> tuple[str, ...]:
        if interface == "lo":
            raise OSError(28, "No space left on device")
        return detach(shaper, interface)

    monkeypatch.setattr(Shaper, "detach", fail)
    running.stop()
    assert running.kernel.observe("eth7") is None
    assert isinstance(running.error, ShapingError)
    assert "lo: [Errno 28]" in str(running.error)


def test_a_stop_that_comes_before_the_start_touches_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write()
    options = Options(load_policy=lambda: load((tmp_path / "broker.toml").read_text()))
    daemon = Daemon(options, kernel=running.kernel, classifier=None, log=open_log())
    daemon.stop()
    daemon.run()
    assert daemon.snapshot is None
    assert running.kernel.observe("lo") is None


def test_a_second_daemon_is_refused_and_the_first_does_not_notice(running: Running) -> None:
    second = Running(running.folder)
    second.write()
    second.start()  # returns as soon as the first one answers
    assert second.thread is not None
    second.thread.join(10)
    assert isinstance(second.error, BrokerRejectedError)
    assert "another broker" in str(second.error)
    assert running.status()["schema"] == 1


@pytest.mark.parametrize("what", ["interface", "privilege", "directory"])
def test_a_start_that_cannot_be_is_one_clear_error_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    running = Running(tmp_path)
    running.write(interface="eth9" if what == "interface" else "lo")
    if what == "privilege":
        running.kernel.privileged = False
    if what == "directory":
        (tmp_path / "run").write_text("a file")
    running.start()
    expected = PrivilegeError if what == "privilege" else ConfigurationError
    assert isinstance(running.error, expected), running.error
    assert not (tmp_path / "run/session.sock").exists()
    assert running.kernel.observe("lo") is None


def test_a_stop_gives_interfaces_back_and_removes_the_sockets(running: Running) -> None:
    assert running.kernel.observe("lo") is not None
    running.stop()
    assert running.kernel.observe("lo") is None
    assert not Path(running.sessions).exists()
    assert not Path(running.api).exists()


def test_a_recording_of_the_daemon_replays_to_the_same_bytes(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        ask(session, burst)
        wait_until(lambda: running.status()["daemon"]["ticks"] > 20)
    running.stop()
    lines = (running.folder / "record.jsonl").read_text().splitlines()
    result = replay(lines)
    assert result.ticks >= 20
    assert result.first_difference is None


def test_a_supervisor_hears_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(5)
        supervisor.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        running = Running(tmp_path, notifier=Notifier(environment))
        running.write()
        running.start()
        assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=shaping lo")
        assert supervisor.recv(1000) == b"WATCHDOG=1"
        running.stop()
        heard = b""
        while heard != b"STOPPING=1":
            heard = supervisor.recv(1000)
