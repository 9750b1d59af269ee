"""The kernels that reduce: values in rank order, 16-bit floats in float32, the same bits wherever they run.

Every element is computed as ((x0 op x1) op x2) ..., one IEEE operation after the other, so that neither the size of a
chunk nor its owner nor the processor's vector width can show in the result. bfloat16, which numpy lacks, is the upper
half of a float32: widening is exact, narrowing rounds to nearest, ties to even (as IEEE 754 says for its own formats).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hive_qos.errors import MisuseError
from transport.collectives.reduce_op import ReduceOp

Array: TypeAlias = npt.NDArray[Any]

_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
_BOOL_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.BOR: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.BAND: np.logical_and,
    ReduceOp.BXOR: np.logical_xor,
}
_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})
_ORDERED = frozenset({ReduceOp.MIN, ReduceOp.MAX})


def check(dtype: str, op: ReduceOp) -> None:
    """Whether values of a dtype can be reduced so.

    Raises:
        MisuseError: they cannot; says what would do.
    """
    if not isinstance(op, ReduceOp):
        raise MisuseError(f"{op!r} is no reduction: take one of transport.ReduceOp, such as ReduceOp.MEAN")
    floating = dtype.startswith(("float", "bfloat", "complex"))
    if dtype.startswith("float8") or dtype == "":
        raise MisuseError(f"{dtype or 'plain bytes'} cannot be reduced; convert to bfloat16 or float32 first")
    if op is ReduceOp.MEAN and dtype == "bool":
        raise MisuseError('there is no mean of bool; use SUM, which is "or", or convert to a floating dtype')
    if op in _BITWISE and floating:
        raise MisuseError(f"bitwise reductions need integers or bool, not {dtype}")
    if op in _ORDERED and dtype.startswith("complex"):
        raise MisuseError(f"{dtype} has no order for {op.value}")


def reduce_into(
    target: memoryview, sources: Sequence[memoryview], *, dtype: str, op: ReduceOp, divisor: int | None = None
) -> None:
    """Reduce equally long runs of values into `target`, which may be one of them.

    Args:
        target, sources: contiguous bytes of the same length; sources in rank order, at least one.
        dtype, op: a pair that `check` accepts; MEAN adds.
        divisor: of the result, before it is rounded; None to leave it.
    """
    if not target.nbytes:
        return
    if dtype == "bool":
        ufunc = _BOOL_UFUNCS[op]
        _accumulate(target, sources, "bool", ufunc, None)
        return
    widen, narrow, wide = _FORMATS.get(dtype, (None, None, dtype))
    # Overflow to infinity and invalid operations are results here, as they are in torch, not events to warn of.
    with np.errstate(all="ignore"):
        if widen is None or narrow is None:
            _accumulate(target, sources, wide, _UFUNCS[op], divisor)
            return
        total = widen(sources[0])
        for source in sources[1:]:
            _UFUNCS[op](total, widen(source), out=total)
        if divisor is not None:
            total = _quotient(total, divisor)
        np.frombuffer(target, dtype=np.uint8)[:] = narrow(total).view(np.uint8)


def _accumulate(
    target: memoryview, sources: Sequence[memoryview], dtype: str, ufunc: np.ufunc, divisor: int | None
) -> None:
    values = [np.frombuffer(source, dtype=dtype) for source in sources]
    # A total of its own (a chunk, which stays in the cache), because the target may be the third source.
    total = values[0].copy() if len(values) == 1 else ufunc(values[0], values[1])
    for value in values[2:]:
        ufunc(total, value, out=total)
    if divisor is not None:
        total = _quotient(total, divisor)
    np.frombuffer(target, dtype=dtype)[:] = total


def _quotient(total: Array, divisor: int) -> Array:
    """`total / divisor`; of integers cut toward zero, as C divides them, and NCCL."""
    if total.dtype.kind == "c":  # a complex division makes NaN of infinity
        _quotient(total.view(total.real.dtype), divisor)
        return total
    if total.dtype.kind not in "iu":
        np.divide(total, total.dtype.type(divisor), out=total)
        return total
    wide = total if total.itemsize == 8 else total.astype(np.int64)  # the divisor may not fit into 8 bits
    quotient, rest = np.divmod(wide, wide.dtype.type(divisor))
    quotient += (rest != 0) & (wide < 0)  # divmod rounds down
    return quotient


def widen_bfloat16(source: memoryview) -> Array:
    """bfloat16 as float32, exactly."""
    return (np.frombuffer(source, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow_bfloat16(values: Array) -> Array:
    """float32 as bfloat16 (uint16), rounded to nearest, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    # Adding 0x7fff, and one more where the lowest kept bit is set, carries into it exactly when rounding goes up.
    rounded = (bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def _widen_float16(source: memoryview) -> Array:
    return np.frombuffer(source, dtype=np.float16).astype(np.float32)


def _narrow_float16(values: Array) -> Array:
    return values.astype(np.float16)


def _widen_complex32(source: memoryview) -> Array:
    return _widen_float16(source).view(np.complex64)


def _narrow_complex32(values: Array) -> Array:
    return values.view(np.float32).astype(np.float16)


_Format: TypeAlias = tuple[Callable[[memoryview], Array], Callable[[Array], Array], str]
_FORMATS: dict[str, _Format] = {
    "bfloat16": (widen_bfloat16, narrow_bfloat16, "float32"),
    "float16": (_widen_float16, _narrow_float16, "float32"),
    "complex32": (_widen_complex32, _narrow_complex32, "complex64"),
}
