"""Syncthing and rclone themselves, in a lab, behind a broker: backlog, limit, restoring, and a change by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from broker.adapters.program import ProgramError, StorageAdapter
from broker.adapters.rclone import Rclone
from broker.adapters.syncthing import KIB_BITS, Syncthing
from broker.policy.types import StorageProgram
from tools.lab import Lab
from tools.lab.host import Host
from tools.lab.kernel import entered

pytestmark = pytest.mark.storage_programs

OWN_KIB_PER_S = 4096
PRIVATE = {
    "globalAnnounceEnabled": "false", "localAnnounceEnabled": "false", "relaysEnabled": "false", "natEnabled": "false",
    "crashReportingEnabled": "false", "urAccepted": "-1", "stunKeepaliveStartS": "0", "startBrowser": "false",
    "reconnectionIntervalS": "1",
}  # fmt: skip
"""Nothing of it looks for anybody outside of the lab."""


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is missing: apt-get install {name}, or tools/setup.sh"
    return found


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("storage-programs") as lab:
        yield lab


@dataclass
class Running:
    """A program in a host, as the adapter sees it: `ask` does something with it from inside of the host."""

    host: Host
    policy: StorageProgram
    key: str
    kind: type[Syncthing | Rclone]

    def ask(self, what: Callable[[StorageAdapter], Any]) -> Any:
        with entered(self.host.namespace):
            return what(self.kind(self.policy, self.key))

    def answers(self) -> bool:
        try:
            self.ask(lambda one: one.read())
        except ProgramError:
            return False
        return True

    def rate(self) -> int | None:
        """The limit that it has now."""
        return self.ask(lambda one: one.rate_bits_per_s(one.settings()[1]))

    def section(self, key_file: Path) -> str:
        key_file.write_text(self.key)
        key_file.chmod(0o600)
        return (
            f'\n[[storage_program]]\nkind = "{self.policy.kind}"\nurl = "{self.policy.url}"\nkey_file = "{key_file}"\n'
            'deadline = "06:00"\n'
        )


@dataclass
class SyncthingHost(Running):
    home: Path
    device: str

    def start(self) -> subprocess.Popen[bytes]:
        argv = [program("syncthing"), "serve", f"--home={self.home}", "--no-browser", "--no-restart", "--no-upgrade"]
        with open(self.home / "log", "ab") as log:
            return self.host.popen(argv, env={"HOME": str(self.home)}, stdout=log, stderr=log)

    def patch(self, path: str, body: dict[str, Any], *, method: str = "PATCH") -> None:
        with entered(self.host.namespace):
            Syncthing(self.policy, self.key)._http.text(method, path, body)

    def put(self, name: str, size_bytes: int) -> None:
        """Give it a new file to replicate."""
        (self.home / "data" / name).write_bytes(os.urandom(size_bytes))
        self.patch("/rest/db/scan?folder=f", {}, method="POST")


def syncthing(host: Host, home: Path) -> SyncthingHost:
    """A Syncthing with its files, not yet started."""
    argv = [program("syncthing"), "generate", f"--home={home}", "--skip-port-probing", "--no-default-folder"]
    said = host.run(argv, env={"HOME": str(home)})
    device = re.search(r"Device ID: (\S+)", said.stdout + said.stderr)
    assert device is not None, said
    path = home / "config.xml"
    text = path.read_text()
    for option, value in PRIVATE.items():
        text = re.sub(f"<{option}>[^<]*</{option}>", f"<{option}>{value}</{option}>", text)
    text = text.replace("<listenAddress>default<", f"<listenAddress>tcp://{host.address}:4873<")
    path.write_text(text)
    key = re.search("<apikey>([^<]+)<", text)
    assert key is not None
    policy = StorageProgram("syncthing", "syncthing", "http://127.0.0.1:8384")
    return SyncthingHost(host, policy, key[1], Syncthing, home, device[1])


@pytest.fixture(scope="module")
def pair(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SyncthingHost, SyncthingHost]]:
    """Two that share a folder."""
    made = tuple(syncthing(lab[name], tmp_path_factory.mktemp(name)) for name in ("a", "b"))
    processes = [one.start() for one in made]
    try:
        for one, other in (made, made[::-1]):
            wait_until(one.answers)
            data = one.home / "data"
            data.mkdir()
            address = f"tcp://{other.host.address}:4873"
            device = {"deviceID": other.device, "addresses": [address], "paused": True}
            one.patch("/rest/config/devices", device, method="POST")
            devices = [{"deviceID": one.device}, {"deviceID": other.device}]
            folder = {"id": "f", "path": str(data), "devices": devices, "fsWatcherEnabled": False}
            one.patch("/rest/config/folders", folder, method="POST")
            one.patch(f"/rest/config/devices/{other.device}", {"paused": False})
        made[0].put("first", 1)  # what a device without any file lacks, 1.19 does not count
        wait_until(lambda: (made[1].home / "data/first").exists())
        yield made[0], made[1]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(LIMIT_S)


@dataclass
class Adapter:
    """`hive-qos adapter` beside a broker."""

    broker: Broker
    process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> list[str]:
        folder = self.broker.folder
        return ["--config", str(folder / "broker.toml"), "--runtime-dir", str(folder / "run")]

    @property
    def state(self) -> Path:
        return self.broker.folder / "adapter"

    def start(self) -> None:
        argv = [*COMMAND, "adapter", *self.options, "--state-dir", str(self.state)]
        with open(self.broker.folder / "adapter.log", "ab") as log:
            self.process = self.broker.host.popen(argv, stderr=log)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def told(self) -> dict[str, Any]:
        """What the broker shows of the only program."""
        found = self.broker.status()["storage_programs"]
        return found[0] if found else {}


@pytest.fixture
def beside(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Callable[[Running, str], Adapter]]:
    """Starts a broker with one program configured, and its adapter. Both end with the test."""
    with broker_in(lab["a"]) as broker:
        adapter = Adapter(broker)

        def start(running: Running, ceiling: str) -> Adapter:
            section = running.section(broker.folder / "key")
            storage = f'[class.storage]\nguarantee = "500 kbit/s"\nceiling = "{ceiling}"'
            broker.configuration = CONFIGURATION.replace("[class.storage]", storage) + section
            broker.start()
            adapter.start()
            return adapter

        yield start
        if adapter.process is not None and adapter.process.poll() is None:
            adapter.end(signal.SIGTERM)


def near(rate: int | None, wanted: int) -> bool:
    """Within the program's own rounding."""
    return rate is not None and abs(rate - wanted) <= 2 * KIB_BITS


def test_syncthings_backlog_and_limit_follow_its_class_and_are_restored_after_every_end(
    pair: tuple[SyncthingHost, SyncthingHost], beside: Callable[[Running, str], Adapter]
) -> None:
    own, _ = pair
    adapter = beside(own, "1 Mbit/s")
    wait_until(lambda: near(own.rate(), 1_100_000), what=lambda: (adapter.told(), adapter.broker.log))
    own.put("file", 8_000_000)  # a minute at this rate
    needs = wait_until(lambda: adapter.broker.status()["needs"], what=adapter.told)
    assert 0 < needs[0]["backlog_bytes"] <= 8_000_000
    assert 0 < needs[0]["remaining_s"] <= 24 * 3600 + 600
    wait_until(lambda: adapter.told()["limit_bits_per_s"] is not None)
    assert adapter.told()["state"] == "working"

    adapter.end(signal.SIGKILL)
    assert near(own.rate(), 1_100_000)
    done = own.host.run([*COMMAND, "adapter", "--restore", "--json", "--state-dir", str(adapter.state)])
    assert json.loads(done.stdout) == {"done": ["syncthing: its own limit is back"], "failed": []}
    assert own.rate() is None

    adapter.start()
    wait_until(lambda: near(own.rate(), 1_100_000))
    adapter.end(signal.SIGKILL)
    adapter.start()
    adapter.broker.end(signal.SIGKILL)
    wait_until(lambda: own.rate() is None)  # nobody would raise it again
    assert adapter.end(signal.SIGTERM) == 0
    assert list(adapter.state.glob("*.json")) == []


def test_a_limit_set_by_hand_in_syncthing_wins_and_what_else_was_ours_is_put_back(
    pair: tuple[SyncthingHost, SyncthingHost], beside: Callable[[Running, str], Adapter]
) -> None:
    own, _ = pair
    adapter = beside(own, "2 Mbit/s")
    wait_until(lambda: near(own.rate(), 2_200_000))
    own.patch("/rest/config/options", {"maxSendKbps": OWN_KIB_PER_S})
    wait_until(lambda: "by hand" in adapter.told().get("text", ""))
    assert own.rate() == OWN_KIB_PER_S * KIB_BITS
    assert adapter.end(signal.SIGTERM) == 0
    _, left = own.ask(lambda one: one.settings())
    assert (left["maxSendKbps"], left["limitBandwidthInLan"]) == (OWN_KIB_PER_S, False)
    own.patch("/rest/config/options", {"maxSendKbps": 0})


def test_a_wrong_key_is_an_alarm_with_what_to_do_and_touches_nothing(
    pair: tuple[SyncthingHost, SyncthingHost], beside: Callable[[Running, str], Adapter]
) -> None:
    own, _ = pair
    wrong = Running(own.host, own.policy, "wrong", Syncthing)
    adapter = beside(wrong, "1 Mbit/s")
    wait_until(lambda: adapter.told().get("state") == "refused")
    assert "key_file" in adapter.told()["text"]
    checked = subprocess.run(
        own.host.command([*COMMAND, "adapter", "--check", *adapter.options]), capture_output=True, text=True
    )
    assert checked.returncode == 9
    assert "key_file" in checked.stderr
    assert own.rate() is None


def test_rclones_limit_follows_its_class_and_a_restart_of_rclone_gets_it_again(
    lab: Lab, beside: Callable[[Running, str], Adapter]
) -> None:
    policy = StorageProgram("rclone", "rclone", "http://127.0.0.1:5572")
    own = Running(lab["a"], policy, "user:secret", Rclone)
    argv = [program("rclone"), "rcd", "--rc-addr", "127.0.0.1:5572", "--rc-user", "user", "--rc-pass", "secret"]
    argv += ["--bwlimit", "1M:2M", "--config", "/dev/null"]
    process = lab["a"].popen(argv, stderr=subprocess.DEVNULL)
    try:
        wait_until(own.answers)
        found = own.rate()
        assert found == 8 * 2**20
        adapter = beside(own, "1 Mbit/s")
        wait_until(lambda: own.rate() == 1_100_000)
        process.kill()
        process.wait(LIMIT_S)
        wait_until(lambda: adapter.told().get("state") == "unreachable")
        process = lab["a"].popen(argv, stderr=subprocess.DEVNULL)
        wait_until(own.answers)
        wait_until(lambda: own.rate() == 1_100_000)
        assert adapter.end(signal.SIGTERM) == 0
        assert own.rate() == found
        with entered(lab["a"].namespace):
            assert Rclone(policy, "user:secret").settings()[1]["receive"] == 2 * 2**20
    finally:
        process.kill()
        process.wait(LIMIT_S)
