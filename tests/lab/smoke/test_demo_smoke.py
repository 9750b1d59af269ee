"""The whole demonstration on its real parts, with few steps; and what an interruption leaves behind: nothing."""

from __future__ import annotations

import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

from tools.demo.records import read
from tools.demo.report import compute

REPOSITORY = Path(__file__).resolve().parents[3]
FEW = [
    "--rate=40 Mbit/s",
    "--width=64",
    "--batch=8",
    "--rounds=1",
    "--half=2 s",
    "--warm-up=1 s",
]


def demo(output: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.demo", "run", "--output", os.path.relpath(output, REPOSITORY), *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def nothing_is_left_of(output: Path) -> None:
    """Assert that the run's namespaces, processes and files are gone."""
    topology = next(event for event in events(output) if event["event"] == "topology")
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in namespaces if name.startswith(f"hq{topology['lab']}-")]
    assert not Path(topology["work"]).exists()
    left = functools.partial(processes_that_name, topology["work"], str(output))
    wait_until(lambda: not left(), what=left, pause_s=0.1)


def processes_that_name(*words: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if any(word in line for word in words):
            found.append(line)
    return found


def events(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


@pytest.mark.timeout(480)
def test_short_run_reports_every_phase_and_can_be_recomputed(tmp_path: Path) -> None:
    process = demo(tmp_path, *FEW)
    try:
        text, _ = process.communicate(timeout=420)
    finally:
        process.kill()
    assert process.returncode in (0, 1), text  # 1: so few steps may well show no harm by the flood
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"], text
    assert report["weights_identical"] is True
    for condition in ("idle", "flooded", "static", "brokered"):
        for half in ("full", "half"):
            cell = report["phases"][condition][half]
            assert cell["steps"] >= 1
            assert cell["step_s"]["p95"] >= cell["step_s"]["median"] > 0
            assert 0 < cell["cpu_share"] < 1.001  # a machine that is full, and rounding
            assert (cell["storage_bits_per_s"] > 1e6) == (condition != "idle")
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    wanted = {"rank": 0, "kind": "phase", "condition": "brokered", "half": "half"}
    seconds = [step["step_s"] for step in steps if all(step[key] == value for key, value in wanted.items())]
    assert report["phases"]["brokered"]["half"]["step_s"]["median"] == statistics.median(seconds)
    assert json.loads(json.dumps(compute(read(tmp_path)))) == report
    assert (tmp_path / "plot.png").stat().st_size > 20_000
    broker = [json.loads(line) for line in (tmp_path / "status.jsonl").read_text().splitlines()]
    assert {entry["host"] for entry in broker} == {"a", "b"}
    nothing_is_left_of(tmp_path)


@pytest.mark.timeout(240)
def test_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    process = demo(tmp_path, *FEW, "--backend=gloo")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("starting training"):
                break
        time.sleep(1.0)  # the trainers are being born, the worst moment; at any other it must hold as well
        os.kill(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 130, text
    nothing_is_left_of(tmp_path)
    assert events(tmp_path)[-1]["error"] == "interrupted"
