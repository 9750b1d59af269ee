"""What Prometheus' own tool says of the metrics and the alert rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from broker_host import CONFIGURATION, STORAGE, broker_in, two_hosts
from patience import wait_until
from test_broker_status import programs, sink

from broker import client

ROOT = Path(__file__).parents[2]
EXTRACTED = ROOT / "out/promtool/usr/bin/promtool"


def promtool(*arguments: str, text: bytes | None = None) -> str:
    program = shutil.which("promtool") or (str(EXTRACTED) if EXTRACTED.exists() else None)
    assert program is not None, "no promtool: make test-page gets it (the Debian package prometheus)"
    done = subprocess.run([program, *arguments], cwd=ROOT / "monitoring", input=text, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_the_metrics_of_a_daemon_with_traffic_follow_the_conventions() -> None:
    with two_hosts("prom") as lab, broker_in(lab["a"]) as broker, sink(lab["b"]):
        broker.configuration = CONFIGURATION
        broker.start()
        with programs((lab["a"], STORAGE, (lab["b"].address,))):
            wait_until(lambda: broker.sent_bytes("storage") > 1_000_000)
            text = client.fetch("/metrics", socket_path=str(broker.folder / "run/broker.sock"))
    assert promtool("check", "metrics", text=text) == ""


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_the_alert_rules_hold(arguments: tuple[str, ...]) -> None:
    assert "SUCCESS" in promtool(*arguments)
