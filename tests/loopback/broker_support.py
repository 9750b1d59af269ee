"""A daemon in a thread of this process, over real Unix sockets and with a kernel in memory; and how to talk to it."""

from __future__ import annotations

import array
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_kernel import FakeClassifier, FakeKernel
from patience import LIMIT_S, wait_until

from broker import client
from broker.client.protocol import encode
from broker.daemon.composition import Environment
from broker.daemon.config_file import read_file
from broker.daemon.config_store import ConfigStore, Source
from broker.daemon.daemon import Daemon
from broker.events.log import open_log
from broker.events.recent import RecentEvents
from broker.events.telemetry import Telemetry
from broker.policy.toml import load
from broker.process.notify import Notifier
from hive_qos.errors import BrokerUnavailableError

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


def claim_of(folder: Path) -> str:
    """The claim of a daemon whose kernel is in memory: no broker that works here is in its way."""
    return f"hq-test-{folder.stat().st_ino}"


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
    namespace: str = ""
    telemetry: Telemetry | None = None

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

        path = self.folder / "broker.toml"
        source = Source(read=lambda: read_file(path), parse=load, state_dir=str(self.folder / "state"), file=str(path))
        recent = RecentEvents()
        log = open_log(recent=recent, forward=self.telemetry.take if self.telemetry is not None else None)
        given = Environment(
            configurations=ConfigStore(source, log=log),
            kernel=self.kernel,
            classifier=FakeClassifier(),
            log=log,
            recent=recent,
            telemetry=self.telemetry,
            mark=self.mark or mark,
            notifier=self.notifier or Notifier({}),
        )
        self.daemon = Daemon(given, namespace=self.namespace or claim_of(self.folder))
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
            release.wait(60)

        self.daemon._active_policy.reload = hold  # type: ignore[assignment, method-assign]
        self.daemon.reload()
        assert held.wait(LIMIT_S)

    def status(self) -> dict[str, Any]:
        return client.status(self.api)

    def stop(self) -> None:
        if self.daemon is not None and self.thread is not None:
            self.daemon.stop()
            self.thread.join(LIMIT_S)
            assert not self.thread.is_alive()
            self.daemon = self.thread = None


@contextlib.contextmanager
def connected(path: str, *, hello: bool = True) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(LIMIT_S)
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
