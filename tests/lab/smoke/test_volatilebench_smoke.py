"""The benchmark of volatile training over the lab's links, with few steps; and what an interruption leaves: nothing."""

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


def lab_namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("hq")}


@pytest.mark.timeout(300)  # three processes begin, and a busy machine takes seconds to import torch for each
def test_ctrl_c_takes_everything_down_and_keeps_what_was_measured(tmp_path: Path) -> None:
    before = lab_namespaces()
    command = [sys.executable, "-m", "tools.volatilebench", "loss", "--quick", "--workers=2", "--steps=20"]
    run = subprocess.Popen(
        [*command, "--seeds=100", "--output", str(tmp_path)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    records = tmp_path / "records.jsonl"
    try:
        wait_until(lambda: records.exists() and '"DiLoCo"' in records.read_text(), limit_s=200.0)
        os.kill(run.pid, signal.SIGINT)
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 130, said
    assert "Traceback" not in said
    wait_until(lambda: lab_namespaces() <= before, what=lambda: lab_namespaces() - before)
    head, *turns = map(json.loads, records.read_text().splitlines())
    assert set(head["versions"]) >= {"commit", "dirty"}
    assert {turn["kind"] for turn in turns} == {"loss"}, said
    found = json.loads((tmp_path / "report.json").read_text())
    diloco = next(cell for cell in found["cells"] if cell["contender"] == "DiLoCo")
    assert diloco["figures"]["sent_bytes"]["median"] > 0
    assert diloco["figures"]["same_loss"]["median"] > 0
    assert "DDP gloo" in (tmp_path / "report.md").read_text()
