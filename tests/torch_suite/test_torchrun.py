"""Lightning, Accelerate and restarts by torchrun over hive train to what they train to over Gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"


def run(program: str, backend: str, folder: Path, *arguments: str) -> dict[str, torch.Tensor]:
    """What rank 0 of two saves."""
    with subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(PROGRAMS / program)),
            *(backend, str(folder / backend), *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HIVE_BROKER": "off", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=140)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its workers, which would outlive it if it were killed
            raise
    assert process.returncode == 0, said
    saved: dict[str, torch.Tensor] = torch.load(folder / backend)
    return saved


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["with_accelerate.py", "with_lightning.py"])
def test_a_framework_trains_to_the_weights_that_it_trains_to_over_gloo(program: str, tmp_path: Path) -> None:
    gloo, hive = (run(program, backend, tmp_path) for backend in ("gloo", "hive"))
    for name in ("weights", "loss", "gathered"):
        torch.testing.assert_close(hive[name], gloo[name], rtol=1e-6, atol=1e-7)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deaths", [["collective", "collective"], ["init"]], ids=["twice-connected", "unconnected"])
def test_ranks_that_torchrun_restarts_after_deaths_reach_the_weights_of_a_run_without(
    deaths: list[str], tmp_path: Path
) -> None:
    gloo, hive = run("restart.py", "gloo", tmp_path), run("restart.py", "hive", tmp_path, *deaths)
    assert torch.equal(hive["weights"], gloo["weights"])
