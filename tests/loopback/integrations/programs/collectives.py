"""The checks of collectives, as the adapters for different torches run them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import collective_checks  # noqa: F401 - its checks register themselves
import group_checks  # noqa: F401 - likewise
from checks import CHECKS, raises, run_checks
from ranks import connect

SHORT = (
    "all_gather_in_all_its_forms",
    "all_to_all_in_all_its_forms",
    "allreduce_sums_every_dtype",
    "barriers_hold_everybody_back",
    "coalesced_operations",
    "ddp_trains_to_identical_weights",
    "functional_collectives",
    "gather_and_scatter",
    "groups_of_several_priorities_agree",
    "objects_travel",
    "reduce_scatter_in_all_its_forms",
    "sequence_numbers_agree",
    "subgroups_have_ranks_of_their_own",
)


def run(rank: int, size: int) -> None:
    connect()
    run_checks(rank, size, CHECKS)
    dist.destroy_process_group()


def run_without_backend(rank: int, size: int) -> None:
    """With the adapter for torch 2.13, which works on 2.15 as well."""
    from integrations.torch_backend import process_group

    process_group.backend_can_be_subclassed = lambda: False
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # 2.15 would record what it finds in the registered backend; 2.13 does not
    run_checks_short(rank, size, "hive")


def run_in_a_mixed_group(rank: int, size: int) -> None:
    """As one of several backends in a process group of torch's own; from torch 2.15 on."""
    connect("cpu:hive,cuda:gloo")
    raises(RuntimeError, lambda: dist.recv(torch.empty(3)), "recv without a source")
    run_checks(rank, size, {name: CHECKS[name] for name in SHORT})
    dist.destroy_process_group()


def run_checks_short(rank: int, size: int, backend: str) -> None:
    connect(backend)
    run_checks(rank, size, {name: CHECKS[name] for name in SHORT})
    dist.destroy_process_group()
