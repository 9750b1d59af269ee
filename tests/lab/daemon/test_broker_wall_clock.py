"""Somebody sets the machine's clock by an hour: schedules follow it, and nothing else notices.

The daemon has a wall clock of its own here (`tools/measure/wall_clock.py`), and so has its watchdog.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from broker.client import Session
from tools.lab import Lab
from tools.measure.wall_clock import HALF_PAST_TWELVE_S, HOUR_S, OFFICE_HOURS, WallClock


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("clock") as lab:
        yield lab


def storage_ceiling_bits_per_s(broker: Broker) -> int:
    (storage,) = [each for each in broker.status()["interfaces"][0]["classes"] if each["name"] == "storage"]
    return int(storage["ceil_bits_per_s"])


def in_force(broker: Broker) -> list[str]:
    return [each["name"] for each in broker.status()["schedules"]]


def test_schedules_follow_a_clock_that_is_set_and_leases_and_recordings_do_not(lab: Lab, tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    clock.set_to(HALF_PAST_TWELVE_S)
    at_work_s = clock.behind_s
    recording = tmp_path / "recording"
    with broker_in(
        lab["a"],
        configuration=CONFIGURATION + OFFICE_HOURS + 'ceiling = "10 %"\n',
        arguments=("--record", str(recording)),
        environment=clock.environment,
    ) as broker:
        broker.start()
        wait_until(lambda: in_force(broker) == ["office hours"], what=broker.status)
        held = storage_ceiling_bits_per_s(broker)
        with Session(job="lab", socket_path=broker.sessions) as session:
            session.need(backlog_bytes=10**9)  # a lease of a minute
            wait_until(lambda: broker.status()["needs"], what=broker.status)
            for hours, wanted in ((1, []), (0, ["office hours"]), (-1, [])):
                clock.set_back(at_work_s + hours * HOUR_S)
                wait_until(lambda wanted=wanted: in_force(broker) == wanted, what=broker.status)
                assert (storage_ceiling_bits_per_s(broker) == held) == bool(wanted)
                assert broker.status()["needs"], "an hour by the wall clock ends no lease"
            assert session.reconnects == 0
        broker.stop()
        clock.set_back(at_work_s + HOUR_S)  # before whatever the first daemon wrote
        broker.start()
        wait_until(lambda: in_force(broker) == [], what=broker.status)
        wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)
        assert "htb ffe0:" in broker.root_qdisc()
    ticks = [json.loads(line) for line in recording.read_text().splitlines()]
    times = [tick["now_s"] for tick in ticks if "now_s" in tick]
    assert times == sorted(times)
    assert times[-1] - times[0] < HOUR_S
    replayed = subprocess.run([*COMMAND, "replay", str(recording)], timeout=LIMIT_S, check=False)
    assert replayed.returncode == 0
