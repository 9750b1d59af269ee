"""A selection of PyTorch's own distributed tests, over hive; `make test-torch` runs all of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch_ranks import environment

SUITE = Path(__file__).parents[2] / "torch_suite/suite.py"
SELECTION = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_all_reduce_sum_async",
    "test_barrier_full_group",
    "test_gather_checks",
    "test_scatter_complex",
    "test_send_recv_any_source",
)


@pytest.mark.timeout(300)
def test_a_selection_of_torchs_own_tests_passes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    patterns = [part for name in SELECTION for part in ("-k", f"*TestHive.{name}")]
    output = tmp_path / "outcomes"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SUITE), *patterns],
        env=environment(BACKEND="hive", WORLD_SIZE="3", MASTER_PORT=port, OUTCOMES=str(output)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert json.loads(output.read_text()) == dict.fromkeys(SELECTION, "passed")
