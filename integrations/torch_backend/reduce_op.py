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


def scaled(tensor: torch.Tensor, factor: float | torch.Tensor | None) -> torch.Tensor:
    """A tensor times a factor of `reduction_of`, as a new one; the tensor itself where there is no factor."""
    return tensor if factor is None else tensor.detach() * _fitting(factor, tensor)


def scale(tensor: torch.Tensor, factor: float | torch.Tensor) -> None:
    """Multiply a tensor by a factor of `reduction_of`, in place."""
    tensor.detach().mul_(_fitting(factor, tensor))


def check_factor(tensor: torch.Tensor) -> None:
    """See that a tensor can be multiplied by the factor of a PREMUL_SUM.

    Raises:
        MisuseError: the tensor is not of floating-point numbers.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise MisuseError(f"PREMUL_SUM takes tensors of floating-point numbers, not of {tensor.dtype}")


def _fitting(factor: float | torch.Tensor, tensor: torch.Tensor) -> float | torch.Tensor:
    check_factor(tensor)
    return factor.reshape(()).to(tensor.device) if isinstance(factor, torch.Tensor) else factor


def _factor_of(operation: Any) -> float | torch.Tensor:
    # torch 2.15 has the factor as an attribute; before, only the pickled form tells: (op, is_tensor, factor).
    factor = getattr(operation, "factor", None)
    if factor is None:
        state = operation.__getstate__()
        factor = state[-1] if isinstance(state, tuple) else None
    if isinstance(factor, torch.Tensor | float | int):
        return factor
    raise MisuseError(f"a PREMUL_SUM without a factor: {operation!r}")
