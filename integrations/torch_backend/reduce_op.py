"""torch's reduce operations as the transport's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hive_qos.errors import MisuseError
from transport import ReduceOp

_OPERATIONS: tuple[tuple[Any, ReduceOp], ...] = (
    (dist.ReduceOp.SUM, ReduceOp.SUM),
    (dist.ReduceOp.AVG, ReduceOp.MEAN),
    (dist.ReduceOp.PRODUCT, ReduceOp.PRODUCT),
    (dist.ReduceOp.MIN, ReduceOp.MIN),
    (dist.ReduceOp.MAX, ReduceOp.MAX),
    (dist.ReduceOp.BAND, ReduceOp.BAND),
    (dist.ReduceOp.BOR, ReduceOp.BOR),
    (dist.ReduceOp.BXOR, ReduceOp.BXOR),
)


def reduction_of(operation: Any) -> tuple[ReduceOp, float | torch.Tensor | None]:
    """The transport's operation, and what to multiply this rank's values with before (`PREMUL_SUM`), or None.

    Args:
        operation: `torch.distributed.ReduceOp`, or one of its constants.

    Raises:
        MisuseError: torch has an operation that the transport lacks.
    """
    if operation == dist.ReduceOp.PREMUL_SUM:
        return ReduceOp.SUM, _factor_of(operation)
    for theirs, ours in _OPERATIONS:
        if operation == theirs:
            return ours, None
    raise MisuseError(f"no such reduction in the hive backend: {operation}")


def _factor_of(operation: Any) -> float | torch.Tensor:
    # torch 2.15 has the factor as an attribute; before, only the pickled form tells: (op, is_tensor, factor).
    factor = getattr(operation, "factor", None)
    if factor is None:
        state = operation.__getstate__()
        factor = state[-1] if isinstance(state, tuple) else None
    if isinstance(factor, torch.Tensor | float | int):
        return factor
    raise MisuseError(f"a PREMUL_SUM without a factor: {operation!r}")
