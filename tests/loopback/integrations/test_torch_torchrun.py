"""A script written for Gloo runs with only the backend's name changed, and learns the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_ranks import PROGRAMS, environment


@pytest.mark.timeout(300)
def test_torchrun_with_hive_trains_to_the_weights_that_gloo_trains_to(tmp_path: Path) -> None:
    running = {
        backend: subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node=2"),
                *("--master-addr=127.0.0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
                *(str(PROGRAMS / "train.py"), backend, str(tmp_path / backend)),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for backend in ("gloo", "hive")
    }
    for backend, process in running.items():
        try:
            output, _ = process.communicate(timeout=140)
        finally:
            process.kill()
        assert process.returncode == 0, f"{backend}: {output}"
    gloo, hive = (torch.load(tmp_path / backend) for backend in ("gloo", "hive"))
    assert hive["losses"][-1] < hive["losses"][0]
    # With two ranks a sum has one order only, so that not even rounding may differ.
    assert torch.equal(hive["weights"], gloo["weights"])
    assert hive["losses"] == gloo["losses"]
