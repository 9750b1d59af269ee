"""What the checks of collectives share: their register, their inputs, and how they are run and reported.

Inputs are made from a seed per rank, so that every rank can compute every other's and the expected result. Each check
reports its name and what was wrong; the test then has one test a check.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, report

CHECKS: dict[str, Callable[[int, int], None]] = {}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
OP = dist.ReduceOp


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


def data(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """What rank `rank` puts in: small whole numbers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    values = torch.randint(1, 4, shape, generator=generator, device="cpu").to(DEVICE)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double() if values.dim() else values.double()).to(dtype)
    return (values > 2).to(dtype) if dtype is torch.bool else values.to(dtype)


def everybody(size: int, *shape: int, **kwargs: object) -> torch.Tensor:
    return torch.stack([data(rank, *shape, **kwargs) for rank in range(size)])  # type: ignore[arg-type]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert torch.equal(found, expected), (found, expected)


def raises(kind: type[BaseException], call: Callable[[], object], text: str = "") -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value), str(caught.value)


def run_checks(rank: int, size: int, checks: dict[str, Callable[[int, int], None]]) -> None:
    for name, function in sorted(checks.items()):
        started_s = time.monotonic()
        try:
            function(rank, size)
            problem = ""
        except Exception:  # noqa: BLE001 - whatever went wrong is this check's result
            problem = traceback.format_exc()
        report(check=name, problem=problem, seconds=round(time.monotonic() - started_s, 3))
