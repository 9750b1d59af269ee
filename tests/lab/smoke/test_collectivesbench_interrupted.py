"""The collectives' benchmark over the lab's links, with few turns; and what an interruption leaves behind: nothing."""

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
    argv = [sys.executable, "-m", "tools.collectivesbench", "--output", str(output), "--quick", *arguments]
    return subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def lab_namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("hq")}


@pytest.mark.timeout(300)  # twelve ranks begin, and a busy machine takes seconds to import torch for each
def test_ctrl_c_takes_everything_down_and_keeps_what_was_measured(tmp_path: Path) -> None:
    before = lab_namespaces()
    run = bench(tmp_path, "uneven", "--repetitions=100")
    records = tmp_path / "records.jsonl"
    try:
        # The run's head, and a turn of each.
        wait_until(lambda: records.exists() and records.read_text().count("\n") >= 4, limit_s=200.0)
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
    assert {turn["contender"] for turn in turns} == {"hive", "gloo cubic", "gloo bbr"}
