"""The controller's end of the trainers: starts one in each training host and grants them steps.

A grant is an absolute step number that only grows, sent to both ranks: they never disagree on how many steps there
are. It stays a few steps ahead of what rank 0 has reported, so that nobody waits for the controller within a block,
and a block can still end early.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from hive_qos.errors import HiveError
from tools.demo.network import Network, environment, python
from tools.demo.settings import Settings

HOSTS = ("a", "b")
PORT = 29500
AHEAD_STEPS = 3
"""Granted beyond the last reported step: a report takes a millisecond, a step hundreds."""

START_S_MAX = 90.0
"""Importing torch twice at once takes 10 to 20 s on 2 cores."""

STEP_S_MAX = 45.0
"""A step that takes longer is a hang."""

LOG_LINES = 12

OnStep: TypeAlias = Callable[[Mapping[str, Any]], None]


class DemoError(HiveError):
    """The demonstration could not go on: one of its parts ended, hung or is not there. The text says which."""

    code = "demo"


class Crew:
    """The two trainers, as long as they live."""

    def __init__(
        self,
        *,
        network: Network,
        settings: Settings,
        directory: Path,
        corpus: Path,
        session_sockets: Mapping[str, str],
        on_step: OnStep,
        on_wake: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._on_step, self._on_wake = on_step, on_wake
        self._selector = selectors.DefaultSelector()
        self._connections: list[socket.socket] = []
        self._pending: dict[socket.socket, bytes] = {}
        self._reported = {0: 0, 1: 0}
        self._granted = 0
        self._logs = {host: directory / f"trainer-{host}.log" for host in HOSTS}
        self.hello: dict[int, Mapping[str, Any]] = {}
        self.done: dict[int, Mapping[str, Any]] = {}
        path = directory / "control.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o777)  # the trainers are another user; the directory is ours alone and dies with the run
        self._listener.listen(len(HOSTS))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._processes = {
            host: self._start(
                network, host, rank=rank, control=path, corpus=corpus, session_socket=session_sockets.get(host, "off")
            )
            for rank, host in enumerate(HOSTS)
        }

    def _start(
        self, network: Network, host: str, *, rank: int, control: Path, corpus: Path, session_socket: str
    ) -> subprocess.Popen[bytes]:
        settings = self._settings
        shape = ("width", "layers", "heads", "context", "batch")
        argv = python("tools.demo.trainer", "--control", str(control), "--corpus", str(corpus))
        argv += ["--backend", settings.backend, "--learning-rate", str(settings.learning_rate)]
        argv += [part for name in shape for part in (f"--{name}", str(getattr(settings, name)))]
        node = network.lab[host]
        env = environment(
            RANK=str(rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(len(HOSTS)),
            MASTER_ADDR=network.lab[HOSTS[0]].address,
            MASTER_PORT=str(PORT),
            GLOO_SOCKET_IFNAME=node.interface,
            HIVE_INTERFACE=node.interface,
            HIVE_ENGINE=settings.engine,
            HIVE_JOB="demo",
            HIVE_JOB_SECRET="demo-only-secret-of-this-run",
            HIVE_BROKER=session_socket,
        )
        with self._logs[host].open("wb") as log:
            return node.popen(argv, user=settings.user, env=env, cwd="/", stdout=log, stderr=subprocess.STDOUT)

    @property
    def processes(self) -> Mapping[str, subprocess.Popen[bytes]]:
        """The trainers by host."""
        return self._processes

    @property
    def next_step(self) -> int:
        """The first step that rank 0 has not reported."""
        return self._reported[0]

    def wait_ready(self) -> None:
        """Wait until both have joined the group and said hello."""
        due_s = time.monotonic() + START_S_MAX
        while len(self.hello) < len(HOSTS):
            self.pump(0.2)
            if time.monotonic() > due_s:
                raise DemoError(f"the trainers did not start within {START_S_MAX:g} s\n{self._last_words()}")

    def run(self, *, until: int, seconds_max: float, flows_on: bool) -> int:
        """Let both train up to step `until`, or fewer when the time is over.

        Args:
            flows_on: more steps follow at once, under other conditions: grant ahead across the end, and return as
                soon as rank 0 reports the last step. Otherwise return when both have.

        Returns:
            The step after the last one of this block.
        """
        end_s = time.monotonic() + seconds_max
        heard_s, heard = time.monotonic(), self._reported[0]
        while True:
            if time.monotonic() > end_s and until > self._granted:
                until = self._granted
            ahead = self._reported[0] + AHEAD_STEPS
            self._grant(ahead if flows_on and until > self._granted else min(until, ahead))
            lowest = self._reported[0] if flows_on else min(self._reported.values())
            if lowest >= until:
                return until
            self.pump(0.1)
            if self._reported[0] > heard:
                heard_s, heard = time.monotonic(), self._reported[0]
            elif time.monotonic() - heard_s > STEP_S_MAX:
                raise DemoError(f"step {heard} is not done after {STEP_S_MAX:g} s\n{self._last_words()}")

    def finish(self) -> None:
        """Let both hash their weights and end."""
        self._grant(max(self._granted, self._reported[0]))
        end_s = time.monotonic() + STEP_S_MAX
        while min(self._reported.values()) < self._granted and time.monotonic() < end_s:
            self.pump(0.1)
        for connection in self._connections:
            connection.sendall(b'{"finish": true}\n')
        while len(self.done) < len(HOSTS):
            self.pump(0.1)
            if time.monotonic() > end_s:
                raise DemoError(f"the trainers did not finish\n{self._last_words()}")

    def close(self) -> None:
        """Close every socket, which ends the trainers, and wait for them a little."""
        for connection in (*self._connections, self._listener):
            connection.close()
        self._selector.close()
        for process in self._processes.values():
            try:
                process.wait(3.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pump(self, timeout_s: float) -> None:
        """Read what the trainers say.

        Raises:
            DemoError: one of them has ended before it was done; its last lines are in the text.
        """
        for key, _ in self._selector.select(timeout_s):
            source = key.fileobj
            if source is self._listener:
                connection, _address = self._listener.accept()
                self._connections.append(connection)
                self._pending[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(source, socket.socket):
                self._read(source)
        self._on_wake()
        for host, process in self._processes.items():
            if process.poll() is not None and HOSTS.index(host) not in self.done:
                raise DemoError(f"the trainer of host {host} ended ({process.returncode})\n{self._last_words()}")

    def _grant(self, until: int) -> None:
        if until > self._granted:
            self._granted = until
            for connection in self._connections:
                connection.sendall(json.dumps({"until": until}).encode() + b"\n")

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(65536)
        if not data:
            self._selector.unregister(connection)
            return
        *lines, self._pending[connection] = (self._pending[connection] + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "hello" in message:
                self.hello[message["hello"]["rank"]] = message["hello"]
            elif "done" in message:
                self.done[message["done"]["rank"]] = message["done"]
            else:
                record = message["step"]
                self._reported[record["rank"]] = record["step"] + 1
                self._on_step(record)

    def _last_words(self) -> str:
        words = []
        for host, log in self._logs.items():
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            words += [f"  {host}: {line}" for line in lines]
        return "\n".join(words)
