"""What trains over Gloo trains over hive to the same values: each training runs over both, in the same processes.

A training is a function in a file of `trainings/`. It gets its rank and the world size, and returns tensors. Two ranks
have one order of a sum, so that the bits are the same; with four ranks, or where torch itself divides at another place
over Gloo, only rounding may differ.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report
from trainings import (
    checkpoints,  # noqa: F401 - its trainings register themselves, as those of the others do
    compiled,  # noqa: F401
    data_parallel,  # noqa: F401
    pipelines,  # noqa: F401
    sharded,  # noqa: F401
    tensor_parallel,  # noqa: F401
    zero,  # noqa: F401
)
from trainings.register import TRAININGS, Training


def two(rank: int, size: int) -> None:
    run(rank, size)


def four(rank: int, size: int) -> None:
    run(rank, size)


def run(rank: int, size: int) -> None:
    """Run all trainings for so many ranks, over Gloo, then over hive."""
    mine = [training for training in TRAININGS.values() if training.ranks == size]
    values: dict[tuple[str, str], list[torch.Tensor]] = {}
    problems: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for attempt, backend in enumerate(("gloo", "hive")):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)  # torch keeps attempts apart in the store
        connect(backend)
        torch._dynamo.reset()  # what was compiled for the other
        for training in mine:
            started_s = time.monotonic()
            torch.manual_seed(0)
            try:
                values[training.name, backend] = training.function(rank, size)
            except Exception:  # noqa: BLE001 - whatever went wrong is this training's result
                problems.setdefault(training.name, f"over {backend}: {traceback.format_exc()}")
            seconds[training.name] = round(time.monotonic() - started_s, 2)
            dist.barrier()
        dist.destroy_process_group()
    for training in mine:
        problem = problems.get(training.name) or compared(
            training, values[training.name, "hive"], values[training.name, "gloo"]
        )
        report(check=training.name, problem=problem, seconds=seconds[training.name])


def compared(training: Training, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    """What differs; "" for nothing."""
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if training.rounds else {"rtol": 0, "atol": 0}
    try:
        assert ours, "nothing to compare"
        torch.testing.assert_close(ours, theirs, **tolerance)
    except AssertionError as error:
        return str(error)
    return ""
