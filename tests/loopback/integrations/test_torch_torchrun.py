"""A script written for Gloo runs under torchrun with only the backend's name changed, and learns the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_ranks import PROGRAMS, environment

GLOO_RUNS_MAX = 3
"""On a busy machine Gloo itself now and then ends with "terminate called without an active exception"."""


def started(backend: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--master-addr=127.0.0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *(str(PROGRAMS / "train.py"), backend, str(folder / backend)),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it has said until its end."""
    try:
        return process.communicate(timeout=140)[0]
    finally:
        process.kill()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_torchrun_with_hive_trains_to_the_weights_that_gloo_trains_to(tmp_path: Path) -> None:
    ours, theirs = started("hive", tmp_path), started("gloo", tmp_path)
    said, they_said = ended(ours), ended(theirs)
    assert ours.returncode == 0, said
    for _ in range(GLOO_RUNS_MAX - 1):
        if theirs.returncode != 0:
            theirs = started("gloo", tmp_path)
            they_said = ended(theirs)
    assert theirs.returncode == 0, they_said
    gloo, hive = (torch.load(tmp_path / backend) for backend in ("gloo", "hive"))
    assert hive["losses"][-1] < hive["losses"][0]
    # With two ranks a sum has one order only, so that not even rounding may differ.
    assert torch.equal(hive["weights"], gloo["weights"])
    assert hive["losses"] == gloo["losses"]
