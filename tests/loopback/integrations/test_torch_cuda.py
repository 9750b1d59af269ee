"""Collectives of GPU tensors. Runs where there is a GPU; several ranks may share one. See also `make test-gpu`."""

from __future__ import annotations

import os

import pytest
import torch
from torch_ranks import RunRanks

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("scenario", ["run", "broken"])
def test_gpu_tensors_are_staged_and_ddp_trains_on_the_gpu(run_ranks: RunRanks, scenario: str) -> None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    found = run_ranks("gpu_tensors.py", {scenario: 2}, CUDA_VISIBLE_DEVICES=visible, HIVE_TEST_DEVICE="cuda")
    for result in found[scenario]:
        assert result.exit_code == 0, result.output
