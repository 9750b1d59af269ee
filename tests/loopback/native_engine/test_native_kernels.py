"""The native kernels give the bits of the Python executor's, so that it cannot matter which executor an owner has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import MisuseError
from transport.collectives.kernels import check, reduce_into, widen_bfloat16
from transport.collectives.reduce_op import ReduceOp
from transport.wire.dtypes import ITEM_BYTES

native: Any = pytest.importorskip("hive_qos_native", reason="the native engine is not built here")

COMPLEX = {"complex32", "complex64", "complex128"}
PAIRS = [(dtype, op) for dtype in ITEM_BYTES for op in ReduceOp if native.reduces(dtype, op.value)]
EDGES = {
    # Zeros of both signs, infinities, NaNs, the least and the greatest, and what is a tie when it is narrowed.
    2: [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x7BFF, 0x7F7F, 0x03FF, 0x0400, 0x3F80],
    4: [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x7F7FFFFF, 0x3F808000, 0x3F818000],
    8: [0x0, 0x8000000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x1, 0x3FF0000000000000],
}
"""Bit patterns, by element size."""


def comparable(data: np.ndarray, dtype: str) -> bytes:
    """Bytes in which every NaN is the same one."""
    if dtype == "bfloat16":
        wide = widen_bfloat16(data.data)
        return np.where(np.isnan(wide), np.uint16(0x7FC0), data.view(np.uint16)).tobytes()
    values = data.view(dtype)
    return np.where(np.isnan(values), np.array(np.nan, dtype), values).tobytes() if "float" in dtype else data.tobytes()


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=lambda one: one if isinstance(one, str) else one.value)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 8), elems=st.integers(0, 1200), into=st.integers(0, 8))
def test_both_executors_reduce_to_the_same_bits(dtype, op, seed, ranks, elems, into):
    random = np.random.default_rng(seed)
    size = ITEM_BYTES[dtype]
    rows = [random.integers(0, 256, elems * size, np.uint8) for _ in range(ranks)]
    for row in rows:
        if dtype == "bool":
            row &= 1
        elif size in EDGES and elems:
            at = random.integers(0, elems, min(elems, 40))
            row.view(f"u{size}")[at] = random.choice(np.array(EDGES[size], f"u{size}"), at.size)
    wanted = np.empty(elems * size, np.uint8)
    divisor = ranks if op is ReduceOp.MEAN else None
    reduce_into(wanted.data, [row.data for row in rows], dtype=dtype, op=op, divisor=divisor)
    target = rows[into] if into < ranks else np.empty(elems * size, np.uint8)
    native.reduce(target.data, [row.data for row in rows], dtype, op.value)
    assert comparable(target, dtype) == comparable(wanted, dtype)


def test_the_native_executor_reduces_what_the_other_does_but_complex_numbers():
    for dtype in ITEM_BYTES:
        for op in ReduceOp:
            try:
                check(dtype, op)
                allowed = dtype not in COMPLEX
            except MisuseError:
                allowed = False
            assert native.reduces(dtype, op.value) == allowed, (dtype, op)
