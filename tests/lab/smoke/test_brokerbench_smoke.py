"""The broker's benchmark on its real parts, with few steps; and what an interruption leaves behind: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[3]


def bench(output: Path, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tools.brokerbench", "--output", str(output), "--quick", *arguments]
    return subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def lab_namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("hq")}


def test_a_short_run_measures_each_variant(tmp_path: Path) -> None:
    with bench(tmp_path, "sender", "--steps=6", "--variants=priority,brokered") as run:
        said, _ = run.communicate(timeout=2 * LIMIT_S)
    assert run.returncode == 0, said
    found = json.loads((tmp_path / "report.json").read_text())
    assert not found["failures"], said
    sender = found["scenarios"]["sender"]
    assert {name: figures["step_s"]["n"] for name, figures in sender.items()} == {
        "idle": 4,
        "priority": 4,
        "brokered": 4,
    }
    assert sender["brokered"]["storage_bits_per_s"] > 0
    assert sender["idle"]["storage_bits_per_s"] < 10_000  # the turn before may still close a connection
    assert (tmp_path / "decisions" / "sender-brokered-0-a.jsonl").exists()


def test_ctrl_c_takes_everything_down_and_keeps_what_was_measured(tmp_path: Path) -> None:
    before = lab_namespaces()
    run = bench(tmp_path, "sender", "--steps=3", "--variants=none", "--rounds=100")
    records = tmp_path / "records.jsonl"
    try:
        # The run's head, and an idle block.
        wait_until(lambda: records.exists() and records.read_text().count("\n") >= 2, limit_s=2 * LIMIT_S)
        os.kill(run.pid, signal.SIGINT)
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 130, said
    assert "Traceback" not in said
    wait_until(lambda: lab_namespaces() <= before, what=lambda: lab_namespaces() - before)
    assert json.loads(records.read_text().splitlines()[1])["condition"] == "idle"
