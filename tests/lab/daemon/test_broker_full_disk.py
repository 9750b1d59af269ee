"""A disk without room: the broker shapes, takes configurations, is adopted after a death, and puts back at its end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import wait_until

from broker.cli.exits import ExitCode
from broker.client import http
from tools.lab import Lab

SIZE = 256 * 1024


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("fulldisk") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    """Its state and what it records are on a small disk of their own."""
    with broker_in(lab["a"]) as broker:
        disk = broker.folder / "state"
        disk.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(disk)], check=True)
        try:
            broker.configuration = CONFIGURATION + f'record_file = "{disk}/record"\n'
            yield broker
            broker.stop()
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: Path) -> None:
    with open(path, "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as problem:
                assert "No space" in str(problem)  # noqa: PT017 - which one it is


def capacity_mbit(broker: Broker) -> float:
    return float(broker.status()["interfaces"][0]["capacity_bits_per_s"]) / 1e6


def test_a_first_start_without_room_names_the_file_and_leaves_nothing_behind(broker: Broker) -> None:
    fill(broker.folder / "state/filler")
    (broker.folder / "broker.toml").write_text(broker.configuration)
    argv = [*COMMAND, "broker", "--config", str(broker.folder / "broker.toml")]
    argv += ["--runtime-dir", str(broker.folder / "run"), "--state-dir", str(broker.folder / "state")]
    started = broker.host.run(argv, check=False)
    assert started.returncode == ExitCode.SYSTEM
    last = started.stderr.splitlines()[-1]
    assert last.startswith(f"hive-qos: {broker.folder}/state/")
    assert "No space left on device; free some space there" in last
    assert "the daemon is gone" not in started.stderr
    assert "htb" not in broker.root_qdisc()


def test_without_room_on_the_disk_everything_but_the_recording_goes_on(broker: Broker) -> None:
    broker.start()
    fill(broker.folder / "state/filler")
    wait_until(lambda: "recording-ended" in str(broker.status()["alarms"]), what=broker.status)
    (broker.folder / "broker.toml").write_text(broker.configuration.replace("20 Mbit/s", "10 Mbit/s"))
    answer = str(http.post("/v1/reload", socket_path=str(broker.folder / "run/broker.sock")))
    assert answer.startswith(f"in force, but not kept in {broker.folder}/state")
    wait_until(lambda: 0 < capacity_mbit(broker) <= 10, what=broker.status)
    assert "last-good-not-saved" in broker.log
    broker.end(signal.SIGKILL)
    broker.start()
    assert "adopted=true" in broker.log
    assert "htb ffe0:" in broker.root_qdisc()
    ticks = broker.status()["daemon"]["ticks"]
    wait_until(lambda: broker.status()["daemon"]["ticks"] > ticks + 3)
    assert broker.end(signal.SIGTERM) == 0
    assert "htb" not in broker.root_qdisc()
