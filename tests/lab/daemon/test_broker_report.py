"""`hive-qos report` of a real daemon: what the kernel counted is there by class, and after a restart still."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from broker_host import COMMAND, STORAGE, Broker, broker_in, two_hosts
from patience import wait_until

from tools.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("report") as lab:
        yield lab


def reported(broker: Broker, *options: str) -> dict[str, Any]:
    """What its file says, by class."""
    where = ["--state-dir", str(broker.folder / "state")]
    text = broker.host.run([*COMMAND, "report", "--by", "class", "--json", *where, *options]).stdout
    return {row["class"]: row for row in json.loads(text)["rows"]}


def send_storage(lab: Lab, broker: Broker, *, bytes_min: int) -> int:
    """Send storage for a while; how much of it the kernel counted."""
    before = broker.sent_bytes("storage")
    server = lab["b"].popen([sys.executable, "-c", STORAGE, "sink"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    sender = lab["a"].popen([sys.executable, "-c", STORAGE, lab["b"].address])
    try:
        wait_until(lambda: broker.sent_bytes("storage") - before > bytes_min)
    finally:
        for process in (sender, server):
            process.kill()
            process.wait()
        server.stdout.close()
    ticks = broker.status()["daemon"]["ticks"]
    wait_until(lambda: broker.status()["daemon"]["ticks"] > ticks + 5)
    return broker.sent_bytes("storage") - before


def test_what_was_carried_is_reported_by_class_and_kept_over_a_restart(lab: Lab) -> None:
    with broker_in(lab["a"]) as broker:
        sent = 0
        for _ in range(2):
            broker.start()
            sent += send_storage(lab, broker, bytes_min=2_000_000)
            broker.stop()
            row = reported(broker)["storage"]
            assert 0.9 * sent <= row["carried_bytes"] <= 1.1 * sent
        where = ["--state-dir", str(broker.folder / "state")]
        table = broker.host.run([*COMMAND, "report", *where]).stdout
        assert re.search(r"^storage +- +- +[0-9.]+ MiB +0 +0 +0$", table, re.MULTILINE), table
        assert max(map(len, table.splitlines())) <= 80
        lines = broker.host.run([*COMMAND, "report", "--csv", "--by", "hour,class", *where]).stdout.splitlines()
        assert lines[0] == "hour,class,carried_bytes,lent_bytes,borrowed_bytes,repaid_bytes"
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:00:00\+00:00,[a-z]+,\d+,\d+,\d+,\d+", lines[1])


def test_a_broken_file_is_moved_aside_with_an_event_and_the_broker_goes_on(lab: Lab) -> None:
    with broker_in(lab["a"]) as broker:
        state = broker.folder / "state"
        state.mkdir(mode=0o700)
        (state / "usage.sqlite").write_bytes(b"no database, however long it is made to be " * 100)
        broker.start()
        sent = send_storage(lab, broker, bytes_min=1_000_000)
        broker.stop()
        assert "usage-file-replaced" in broker.log
        assert (state / "usage.sqlite.broken").exists()
        assert reported(broker)["storage"]["carried_bytes"] > 0.8 * sent
