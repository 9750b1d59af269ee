"""The controller's end of the ranks of one job: grants them steps and reads their records.

A grant is an absolute step number that only grows, sent to all ranks: they never disagree on how many steps there are.
It stays a few steps ahead of what rank 0 has reported, so that nobody waits for the controller within a block, and a
block can still end early.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from hive_qos.errors import HiveError

AHEAD_STEPS = 3
"""Granted beyond the last reported step: a report takes a millisecond, a step hundreds."""

START_S_MAX = 90.0
"""Importing torch twice at once takes 10 to 20 s on 2 cores."""

STEP_S_MAX = 45.0
"""A step that takes longer is a hang."""

LOG_LINES = 12

OnStep: TypeAlias = Callable[[Mapping[str, Any]], None]
Start: TypeAlias = Callable[[int, Path, BinaryIO], subprocess.Popen[bytes]]
"""Starts a rank: its number, the socket that it connects to, where its output goes."""


class MeasureError(HiveError):
    """A measurement could not go on: one of its parts ended, hung or is not there. The text says which."""

    code = "measure"


class Crew:
    """The ranks of one job, as long as they live; rank i runs in `hosts[i]`.

    Args:
        directory: for the socket and the logs, which are named after the hosts.
        on_step: gets every step's record.
        on_wake: called at least ten times a second while the crew is waited for.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[str],
        directory: Path,
        start: Start,
        on_step: OnStep,
        on_wake: Callable[[], None],
    ) -> None:
        self._hosts = tuple(hosts)
        self._on_step, self._on_wake = on_step, on_wake
        self._selector = selectors.DefaultSelector()
        self._connections: list[socket.socket] = []
        self._pending: dict[socket.socket, bytes] = {}
        self._reported = dict.fromkeys(range(len(hosts)), 0)
        self._granted = 0
        self._logs = {host: directory / f"trainer-{host}.log" for host in hosts}
        self.hello: dict[int, Mapping[str, Any]] = {}
        self.done: dict[int, Mapping[str, Any]] = {}
        path = directory / "control.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o777)  # the ranks are another user; the directory is ours alone and dies with the run
        self._listener.listen(len(hosts))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for rank, host in enumerate(hosts):
            with self._logs[host].open("wb") as log:
                self._processes[host] = start(rank, path, log)

    @property
    def processes(self) -> Mapping[str, subprocess.Popen[bytes]]:
        """The ranks by host."""
        return self._processes

    @property
    def next_step(self) -> int:
        """The first step that rank 0 has not reported."""
        return self._reported[0]

    def wait_ready(self) -> None:
        """Wait until all have joined the group and said hello."""
        due_s = time.monotonic() + START_S_MAX
        while len(self.hello) < len(self._hosts):
            self.pump(0.2)
            if time.monotonic() > due_s:
                raise MeasureError(f"the trainers did not start within {START_S_MAX:g} s\n{self._last_words()}")

    def run(self, *, until: int, seconds_max: float, flows_on: bool) -> int:
        """Let all train up to step `until`, or fewer when the time is over.

        Args:
            flows_on: more steps follow at once, under other conditions: grant ahead across the end, and return as
                soon as rank 0 reports the last step. Otherwise return when all have.

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
                raise MeasureError(f"step {heard} is not done after {STEP_S_MAX:g} s\n{self._last_words()}")

    def go_on(self) -> None:
        """Grant a few steps beyond what rank 0 has reported, without waiting: for those who run against the clock."""
        self._grant(self._reported[0] + AHEAD_STEPS)

    def rest(self) -> None:
        """Wait until all have done what was granted.

        Raises:
            MeasureError: they have not within the time of a step that hangs.
        """
        due_s = time.monotonic() + STEP_S_MAX
        while min(self._reported.values()) < self._granted:
            self.pump(0.1)
            if time.monotonic() > due_s:
                raise MeasureError(f"step {self._granted - 1} is not done after {STEP_S_MAX:g} s\n{self._last_words()}")

    def tell(self, message: Mapping[str, object]) -> None:
        """Tell every rank something that holds from its next step on."""
        for connection in self._connections:
            connection.sendall(json.dumps(message).encode() + b"\n")

    def finish(self) -> None:
        """Let all end in their own way."""
        self._grant(max(self._granted, self._reported[0]))
        end_s = time.monotonic() + STEP_S_MAX
        while min(self._reported.values()) < self._granted and time.monotonic() < end_s:
            self.pump(0.1)
        self.tell({"finish": True})
        while len(self.done) < len(self._hosts):
            self.pump(0.1)
            if time.monotonic() > end_s:
                raise MeasureError(f"the trainers did not finish\n{self._last_words()}")

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
            MeasureError: one of them has ended before it was done; its last lines are in the text.
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
            if process.poll() is not None and self._hosts.index(host) not in self.done:
                raise MeasureError(f"the trainer of host {host} ended ({process.returncode})\n{self._last_words()}")

    def _grant(self, until: int) -> None:
        if until > self._granted:
            self._granted = until
            self.tell({"until": until})

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
