"""The `brokered` phase: the real daemon, as root, in both training hosts, with a configuration file each.

The file says what an operator knows: the interface, the uplink's nominal rate, what storage is guaranteed, and which
port replication uses. Nobody tells the daemon that the link has lost half its rate.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.client import status
from hive_qos.errors import BrokerError
from tools.demo.crew import DemoError
from tools.demo.network import Network, environment
from tools.demo.storage import PORT

READY_S_MAX = 20.0
SESSION_S_MAX = 15.0
"""The trainer's session reconnects with a back-off of a few seconds at most."""

STOP_S_MAX = 10.0
STATUS_TIMEOUT_S = 0.5


def configuration(*, interface: str, rate_bits_per_s: int, directory: Path, group: str) -> str:
    """Write a host's broker.toml."""
    return f"""\
version = 1

[daemon]
state_dir = "{directory}/state"
api_socket = "{directory}/broker.sock"
session_socket = "{directory}/session.sock"
group = "{group}"
admin_group = "{group}"
record_file = "{directory}/decisions.jsonl"

[[interface]]
name = "{interface}"
egress = "{rate_bits_per_s // 1000} kbit/s"
ingress = "off"

[class.storage]
guarantee = "20 %"
guarantee_window = "60 s"
match = [{{ port = {PORT} }}]
"""


@dataclass(frozen=True)
class Seat:
    """Where one host's broker keeps its things."""

    host: str
    directory: Path

    @property
    def session_socket(self) -> str:
        """What the trainer gets as HIVE_BROKER, in every phase."""
        return str(self.directory / "session.sock")

    @property
    def api_socket(self) -> str:
        """Where its status is read."""
        return str(self.directory / "broker.sock")


class Brokers:
    """Both daemons; started for each brokered phase and cleanly stopped after it."""

    def __init__(self, *, network: Network, hosts: Sequence[str], directory: Path, rate_bits_per_s: int, user: str):
        self._network = network
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.seats = {host: Seat(host, directory / f"broker-{host}") for host in hosts}
        for seat in self.seats.values():
            seat.directory.mkdir(mode=0o755, parents=True)  # a broker refuses a directory that a group may write
            (seat.directory / "state").mkdir(mode=0o755)
            text = configuration(
                interface=network.lab[seat.host].interface,
                rate_bits_per_s=rate_bits_per_s,
                directory=seat.directory,
                group=_group_of(user),
            )
            (seat.directory / "broker.toml").write_text(text)

    def start(self) -> None:
        """Start both and wait until each answers.

        Raises:
            DemoError: one ended or did not answer in time; its last words are in the text.
        """
        for host, seat in self.seats.items():
            program = Path(sys.executable).with_name("hive-qos")
            argv = [str(program), "broker", "--config", str(seat.directory / "broker.toml")]
            with (seat.directory / "log").open("ab") as log:
                self._running[host] = self._network.lab[host].popen(
                    argv, env=environment(), cwd="/", stdout=log, stderr=subprocess.STDOUT
                )
        self._wait(READY_S_MAX, what="answer", done=lambda document: bool(document["interfaces"]))

    def wait_for_sessions(self) -> None:
        """Wait until each has the trainer's session and its sockets."""
        self._wait(SESSION_S_MAX, what="get the trainer's session", done=lambda document: bool(document["sessions"]))

    def stop(self) -> None:
        """Stop both cleanly: each puts back the qdisc that was there."""
        for process in self._running.values():
            process.terminate()
        for host, process in self._running.items():
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise DemoError(f"the broker of {host} did not stop within {STOP_S_MAX:g} s") from None
        self._running.clear()

    @property
    def pids(self) -> dict[str, int]:
        """The daemons that run, by host."""
        return {host: process.pid for host, process in self._running.items()}

    def status(self, host: str) -> dict[str, Any] | None:
        """What a host's broker says of itself; None while it says nothing."""
        if host not in self._running:
            return None
        with contextlib.suppress(BrokerError):
            return status(self.seats[host].api_socket, timeout_s=STATUS_TIMEOUT_S)
        return None

    def _wait(self, seconds: float, *, what: str, done: Any) -> None:
        due_s = time.monotonic() + seconds
        waiting = list(self.seats)
        while waiting:
            waiting = [host for host in waiting if not ((document := self.status(host)) and done(document))]
            for host in waiting:
                if self._running[host].poll() is not None:
                    raise DemoError(f"the broker of {host} ended:\n{self._last_words(host)}")
                if time.monotonic() > due_s:
                    raise DemoError(f"the broker of {host} did not {what} in {seconds:g} s:\n{self._last_words(host)}")
            time.sleep(0.1)

    def _last_words(self, host: str) -> str:
        lines = (self.seats[host].directory / "log").read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-12:])


def _group_of(user: str) -> str:
    """The group that may use the broker's sockets here: the trainer's own."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    return grp.getgrgid(os.getgid()).gr_name
