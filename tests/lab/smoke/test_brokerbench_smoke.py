"""The broker's benchmark on its real parts, with few steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_short_run_measures_each_variant(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tools.brokerbench", "--output", str(tmp_path), "--quick", "sender", "--steps=6"]
    run = subprocess.run(
        [*argv, "--variants=priority,brokered"], cwd=REPOSITORY, capture_output=True, text=True, timeout=2 * LIMIT_S
    )
    said = run.stdout + run.stderr
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
