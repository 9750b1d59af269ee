"""Collectives of GPU tensors. Runs where there is a GPU; several ranks may share one."""

from __future__ import annotations

import os

import pytest
import torch
from torch_ranks import RunRanks

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_tensors_are_staged_and_ddp_trains_on_the_gpu(run_ranks: RunRanks) -> None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    for result in run_ranks("gpu_tensors.py", {"run": 2}, CUDA_VISIBLE_DEVICES=visible)["run"]:
        assert result.exit_code == 0, result.output
