"""etcd as a register: views, jobs and secrets on Debian's server, and what happens where servers are lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import ConfigurationError, HiveError, PeerError, RegisterLostError
from transport.identity import ca_init, ca_issue
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register import etcd_store
from transport.volatile.register.etcd_store import EtcdStore
from transport.volatile.register.register import Register

A, B = Member("a", 1), Member("b", 2)
FIRST = View(1, (A,), 0, bytes(DIGEST_BYTES))
SECOND = View(2, (A, B), 3, b"d" * DIGEST_BYTES, (B,), 4)
SECRET = b"0123456789abcdef"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """etcd servers on loopback."""

    def __init__(self, folder: Path, size: int, *, tls: tuple[str, str, str] | None = None) -> None:
        scheme = "http" if tls is None else "https"
        ports = free_ports(2 * size)
        peers = ",".join(f"s{n}=http://127.0.0.1:{ports[size + n]}" for n in range(size))
        self.endpoints = [f"{scheme}://127.0.0.1:{port}" for port in ports[:size]]
        self.processes: list[subprocess.Popen[bytes]] = []
        program = shutil.which("etcd")
        assert program is not None, "`make test-etcd` brings etcd"
        for n, endpoint in enumerate(self.endpoints):
            urls = ["--listen-client-urls", endpoint, "--advertise-client-urls", endpoint]
            peer = f"http://127.0.0.1:{ports[size + n]}"
            urls += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers]
            files: list[str] = []
            if tls is not None:
                files = ["--trusted-ca-file", tls[0], "--cert-file", tls[1], "--key-file", tls[2], "--client-cert-auth"]
            with (folder / f"s{n}.log").open("wb") as log:
                command = [program, "--name", f"s{n}", "--data-dir", str(folder / f"s{n}"), *urls, *files]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def await_leader(self, store: EtcdStore) -> None:
        def answers() -> bool:
            with contextlib.suppress(RegisterLostError):
                return store.get("nothing") is None
            return False

        wait_until(answers)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 3)
    yield cluster
    cluster.end()


@pytest.mark.etcd_server
def test_views_notes_and_counters_on_three_servers_of_which_one_is_lost(three: Cluster) -> None:
    store, other = EtcdStore(three.endpoints), EtcdStore(three.endpoints[::-1])
    three.await_leader(store)
    one, two = Register(store, job="llm", secret=SECRET), Register(other, job="llm", secret=SECRET)
    assert one.view() is None
    assert one.advance(FIRST, None) == two.advance(View(1, (B,), 0, bytes(DIGEST_BYTES)), None) == FIRST
    three.processes[0].kill()
    assert two.advance(SECOND, FIRST) == one.advance(View(2, (B,), 0, bytes(DIGEST_BYTES)), FIRST) == SECOND
    assert one.view() == two.view() == SECOND
    assert Register(store, job="another", secret=SECRET).view() is None
    with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
        Register(store, job="llm", secret=b"another secret!!").view()

    for member in (A, B):
        two.ask_to_join(member)
    assert one.asked() == 2
    assert [one.request(number) for number in (1, 2)] == [A, B]
    with ThreadPoolExecutor(4) as pool:
        counted = sorted(pool.map(lambda _: store.add("counter", 2), range(20)))
    assert counted == list(range(2, 42, 2))
    assert other.add("counter", 0) == 40
    store._lease = ("7", time.monotonic() + 100.0)  # as after hours of suspension
    store.set("note", b"kept")
    assert other.get("note") == b"kept"
    store._lease = ("7", time.monotonic() + 100.0)
    assert store.add("counter", 1) == other.add("counter", 0) == 41

    three.processes[1].kill()
    lone = EtcdStore(three.endpoints, timeout_s=2.0)
    began_s = time.monotonic()
    with pytest.raises(RegisterLostError, match="no etcd server answers within 2 s"):
        lone.compare_set("key", b"", b"value")
    assert time.monotonic() - began_s < 30.0
    for one_store in (store, other, lone):
        one_store.close()


@pytest.mark.etcd_server
def test_members_train_over_tls_and_a_stranger_is_refused(tmp_path: Path) -> None:
    ca_init(tmp_path / "ca", days=3)
    for name in ("server", "client"):
        ca_issue(tmp_path / "ca", name, addresses=("127.0.0.1",), days=3, out=tmp_path)
    ca = str(tmp_path / "ca/ca.crt")
    server, client = ([str(tmp_path / f"{name}.{end}") for end in ("crt", "key")] for name in ("server", "client"))
    cluster = Cluster(tmp_path, 1, tls=(ca, server[0], server[1]))
    try:
        stores = [EtcdStore(cluster.endpoints, ca=ca, certificate=client[0], key=client[1]) for _ in "ab"]
        cluster.await_leader(stores[0])
        with pytest.raises(RegisterLostError):
            EtcdStore(cluster.endpoints, ca=ca, timeout_s=1.0).get("key")
        with pytest.raises(RegisterLostError, match="certificate"):
            EtcdStore(cluster.endpoints, timeout_s=1.0).get("key")

        def train(place: int) -> tuple[int, float, bytes]:
            register = Register(stores[place], job="llm", secret=SECRET)
            values = np.full(10, float(place), np.float32)
            with VolatileGroup(
                register,
                name="ab"[place],
                get_state=lambda: b"",
                set_state=lambda data: None,
                apply_result=lambda step, tensors: None,
                members_min=2,
                settings=Settings(listen="127.0.0.1", broker="off", inspect=False),
            ) as group:
                done = group.all_reduce(values)
                return done.step, float(values[0]), group.digest

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(train, range(2))
        assert first == second
        assert first[:2] == (1, 0.5)
        for store in stores:
            store.close()
    finally:
        cluster.end()


class Gateway(BaseHTTPRequestHandler):
    """What a server of another kind, or a broken one, answers."""

    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, bytes]] = []  # noqa: RUF012 - replaced by each test
    asked: list[bytes] = []  # noqa: RUF012 - replaced by who looks at it

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
        status, data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def error(message: str) -> bytes:
    return json.dumps({"error": message, "code": 5, "message": message}).encode()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([(503, error("etcdserver: no leader"))], "no leader"),
        ([(200, b"<html>")], "Expecting value"),
        ([(200, b"[]")], "no object"),
        ([(200, b"[" * 100_000)], "recursion"),
        ([(200, b" " * (etcd_store.ANSWER_BYTES_MAX + 1))], "more than"),
        ([(400, error("etcdserver: user name is empty"))], "user name is empty"),
        ([(200, b'{"kvs": [{"value": "no base64"}]}')], "no value"),
        ([(200, b'{"kvs": [7]}')], "no value"),
    ],
)
def test_a_server_that_cannot_serve_is_named_with_what_it_says(
    gateway: str, answers: list[tuple[int, bytes]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gateway, "answers", answers)
    with contextlib.closing(EtcdStore([gateway], timeout_s=0.5)) as store, pytest.raises(RegisterLostError) as lost:
        store.get("key")
    assert reason in str(lost.value)


def test_after_a_server_without_a_leader_the_next_answer_counts(gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway, "answers", [(503, error("no leader")), (200, b'{"kvs": [{"value": "aGk="}]}')])
    (closed,) = free_ports(1)
    with contextlib.closing(EtcdStore([f"http://127.0.0.1:{closed}", gateway])) as store:
        assert store.get("key") == b"hi"


@pytest.mark.parametrize(
    ("write", "before", "done"),
    [
        (lambda store: store.set("key", b"value"), [], b"{}"),
        (lambda store: store.add("key", 5), [b"{}"], b'{"succeeded": true}'),
    ],
    ids=["set", "add"],
)
def test_a_lease_that_went_while_this_host_slept_is_replaced(
    gateway: str,
    write: Callable[[EtcdStore], object],
    before: list[bytes],
    done: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = (404, error("etcdserver: requested lease not found"))
    granted = [(200, json.dumps({"ID": lease}).encode()) for lease in ("71", "72")]
    found = [(200, one) for one in before]
    monkeypatch.setattr(Gateway, "answers", [*found, granted[0], gone, granted[1], (200, done)])
    monkeypatch.setattr(Gateway, "asked", [])
    with contextlib.closing(EtcdStore([gateway], timeout_s=2.0)) as store:
        write(store)
    first, _, second = Gateway.asked[-3:]
    assert b'"lease": "71"' in first
    assert second == first.replace(b"71", b"72")


def test_a_server_that_closes_after_each_answer_is_asked_over_a_new_connection(
    gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gateway, "protocol_version", "HTTP/1.0")  # as `Connection: close` in 1.1
    monkeypatch.setattr(Gateway, "answers", [(200, b'{"kvs": [{"value": "aGk="}]}')])
    with contextlib.closing(EtcdStore([gateway])) as store:
        assert [store.get("key") for _ in range(3)] == [b"hi"] * 3


def test_a_server_that_says_nothing_costs_a_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = EtcdStore([f"http://127.0.0.1:{silent.getsockname()[1]}"], timeout_s=0.3)
        with (
            contextlib.closing(store),
            pytest.raises(RegisterLostError, match=r"within 0.3 s: 127.0.0.1:\d+: timed out"),
        ):
            store.set("key", b"value")


@pytest.mark.parametrize(
    "endpoints", [[], ["10.0.0.1:2379"], ["ftp://a:1"], ["http://"], ["http://a:x"], ["http://a/b"]]
)
def test_what_is_no_endpoint_is_refused(endpoints: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="https://"):
        EtcdStore(endpoints)


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.crt").write_text("none")
    wrong: tuple[dict[str, str], ...] = ({"ca": "none.crt"}, {"certificate": "none.crt"}, {"ca": "missing"})
    for files in wrong:
        given: dict[str, Any] = {name: str(tmp_path / file) for name, file in files.items()}
        with pytest.raises(HiveError, match="PEM"):
            EtcdStore(["https://a:1"], **given)
