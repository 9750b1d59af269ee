"""Real daemons, as root, in hosts of the lab, with a configuration file each; started and cleanly stopped at will."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.client import status
from hive_qos.errors import BrokerError
from tools.lab import Lab
from tools.measure.crew import MeasureError
from tools.measure.programs import environment

READY_S_MAX = 20.0
SESSION_S_MAX = 15.0
"""A rank's session reconnects with a back-off of a few seconds at most."""

STOP_S_MAX = 10.0
STATUS_TIMEOUT_S = 0.5


def configuration(
    *,
    interface: str,
    rate_bits_per_s: int,
    group: str,
    storage_port: int,
    inbound_bits_per_s: int | None = None,
    peers: str = "",
    storage_guarantee: float = 0.2,
    guarantee_window_s: float = 60.0,
) -> Callable[[Seat], str]:
    """A host's broker.toml: what an operator knows of it, as a function of where its broker sits.

    Args:
        rate_bits_per_s: the nominal rate of its way out; nobody tells the daemon when a link loses some of it.
        storage_port: by which storage is known, at either end.
        inbound_bits_per_s: what its way in carries, None where nobody is to look after that.
        peers: its `[peers]` section.
        storage_guarantee: as a part of the link.
        guarantee_window_s: over which that is an average.
    """
    inbound = "off" if inbound_bits_per_s is None else f"{inbound_bits_per_s // 1000} kbit/s"

    def text(seat: Seat) -> str:
        return f"""\
version = 1

{daemon_section(seat, group=group)}
[[interface]]
name = "{interface}"
egress = "{rate_bits_per_s // 1000} kbit/s"
ingress = "{inbound}"

[class.storage]
guarantee = "{100 * storage_guarantee:g} %"
guarantee_window = "{guarantee_window_s:g} s"
match = [{{ port = {storage_port} }}]
{peers}"""

    return text


def daemon_section(seat: Seat, *, group: str) -> str:
    """The part of a broker.toml that says where the daemon keeps its things, and who may use it."""
    return f"""\
[daemon]
state_dir = "{seat.directory}/state"
api_socket = "{seat.api_socket}"
session_socket = "{seat.session_socket}"
group = "{group}"
admin_group = "{group}"
record_file = "{seat.recording}"
"""


@dataclass(frozen=True)
class Seat:
    """Where one host's broker keeps its things."""

    host: str
    directory: Path

    @property
    def recording(self) -> Path:
        """Where its decisions are written."""
        return self.directory / "decisions.jsonl"

    @property
    def session_socket(self) -> str:
        """What a rank gets as HIVE_BROKER, in every phase."""
        return str(self.directory / "session.sock")

    @property
    def api_socket(self) -> str:
        """Where its status is read."""
        return str(self.directory / "broker.sock")


class Brokers:
    """The daemons of several hosts.

    Args:
        configurations: the text of each host's broker.toml, made from its seat.
        directory: gets a directory for each.
    """

    def __init__(self, *, lab: Lab, directory: Path, configurations: Mapping[str, Callable[[Seat], str]]) -> None:
        self._lab = lab
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.seats = {host: Seat(host, directory / f"broker-{host}") for host in configurations}
        for host, seat in self.seats.items():
            seat.directory.mkdir(mode=0o755, parents=True)  # a broker refuses a directory that a group may write
            (seat.directory / "state").mkdir(mode=0o755)
            (seat.directory / "broker.toml").write_text(configurations[host](seat))

    def start(self, hosts: Iterable[str] | None = None, *, more: Mapping[str, str] | None = None) -> None:
        """Start all, or those of some hosts, and wait until each answers.

        Args:
            more: of their environment.

        Raises:
            MeasureError: one ended or did not answer in time; its last words are in the text.
        """
        chosen = list(self.seats if hosts is None else hosts)
        for host in chosen:
            seat = self.seats[host]
            program = Path(sys.executable).with_name("hive-qos")
            argv = [str(program), "broker", "--config", str(seat.directory / "broker.toml")]
            with (seat.directory / "log").open("ab") as log:
                self._running[host] = self._lab[host].popen(
                    argv, env=environment(**(more or {})), cwd="/", stdout=log, stderr=subprocess.STDOUT
                )
        self._wait(chosen, READY_S_MAX, what="answer", done=lambda document: bool(document["interfaces"]))

    def wait_for_sessions(self, hosts: Sequence[str], *, count: int = 1) -> None:
        """Wait until each of these has the sessions of its ranks, and their sockets."""
        self._wait(
            hosts,
            SESSION_S_MAX,
            what="get the sessions of its ranks",
            done=lambda document: len(document["sessions"]) >= count,
        )

    def kill(self, host: str) -> None:
        """End one with SIGKILL: nothing is put back."""
        process = self._running.pop(host)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all cleanly: each puts back the qdisc that was there."""
        for process in self._running.values():
            process.terminate()
        for host, process in self._running.items():
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise MeasureError(f"the broker of {host} did not stop within {STOP_S_MAX:g} s") from None
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

    def _wait(
        self, hosts: Sequence[str], seconds: float, *, what: str, done: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        due_s = time.monotonic() + seconds
        waiting = list(hosts)
        while waiting:
            waiting = [host for host in waiting if not ((document := self.status(host)) and done(document))]
            for host in waiting:
                if self._running[host].poll() is not None:
                    raise MeasureError(f"the broker of {host} ended:\n{self._last_words(host)}")
                if time.monotonic() > due_s:
                    raise MeasureError(
                        f"the broker of {host} did not {what} in {seconds:g} s:\n{self._last_words(host)}"
                    )
            time.sleep(0.1)

    def _last_words(self, host: str) -> str:
        lines = (self.seats[host].directory / "log").read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-12:])


def group_of(user: str) -> str:
    """The group that may use the broker's sockets here: the ranks' own."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    return grp.getgrgid(os.getgid()).gr_name
