"""Bulk state to a peer does not delay control messages to it: the delay-bounded controller on a real queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import most_of

from tools.lab import Lab
from transport.identity import ca_init, ca_issue

ROOT = Path(__file__).parents[3]
PEER = Path(__file__).parents[1] / "engine_peer.py"
RATE_BITS_PER_S = 40_000_000
LATENCY_RATIO_MAX = 3
"""Of control messages with and without bulk, medians of one run. Idle they take 8 to 10 ms there and back; behind a
buffer that bulk has filled it would be 100 ms more, and behind the bulk itself minutes."""
BULK_SHARE_MIN = 0.2
"""Of the link: so much must flow for the latency to say anything. How fast Python is says nothing here."""


def measure(lab: Lab, folder: Path, engine: str, *, seconds: float) -> dict[str, Any]:
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    a, b = lab["a"], lab["b"]

    def program(role: str) -> list[str]:
        return [sys.executable, str(PEER), role, "--engine", engine, "--folder", str(folder)]

    echo = b.popen(
        [*program("echo"), "--name", "b", "--other", "a", "--address", b.address],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"ready\n"
        probe = [*program("probe"), "--name", "a", "--other", "b", "--address", a.address, "--remote", b.address]
        done = a.run([*probe, "--seconds", str(seconds)], env=environment, timeout_s=100)
    finally:
        echo.kill()
        echo.wait()
        if echo.stdout is not None:
            echo.stdout.close()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix("ready"))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["native"])
def test_a_control_message_does_not_wait_behind_a_gigabyte_of_bulk(
    lab_factory: Callable[..., Lab], tmp_path: Path, engine: str
) -> None:
    ca_init(tmp_path / "ca")
    for name in ("a", "b"):
        ca_issue(tmp_path / "ca", name, out=tmp_path)
    lab = lab_factory("priority")
    lab.host("a")
    lab.host("b")
    lab.router("r")
    for name in ("a", "b"):
        lab.link(name, "r", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.002, buffer_s=0.1)
    lab.up()

    def good(found: dict[str, Any]) -> bool:
        waits = found["loaded_s"]["median"] / found["idle_s"]["median"]
        return waits <= LATENCY_RATIO_MAX and found["bulk_bits_per_s"] >= BULK_SHARE_MIN * RATE_BITS_PER_S

    most_of(lambda: measure(lab, tmp_path, engine, seconds=4.0), good, windows=4)
