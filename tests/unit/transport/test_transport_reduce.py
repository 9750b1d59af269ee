"""The reduction kernels: exact where formats allow it, rounded once, and never in arrival order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import MisuseError
from transport.collectives.kernels import check, narrow_bfloat16, reduce_into, widen_bfloat16
from transport.collectives.reduce_op import ReduceOp


def run(values: list[np.ndarray], dtype: str, op: ReduceOp) -> np.ndarray:
    target = np.empty_like(values[0])
    reduce_into(
        target.data.cast("B"),
        [value.data.cast("B") for value in values],
        dtype=dtype,
        op=op,
        divisor=len(values) if op is ReduceOp.MEAN else None,
    )
    return target


def test_widening_bfloat16_is_exact_for_all_65536_values():
    bits = np.arange(65536, dtype=np.uint16)
    wanted = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert widen_bfloat16(bits.data.cast("B")).tobytes() == wanted.tobytes()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_narrowing_to_bfloat16_rounds_as_torch_does(patterns):
    # Every tie, subnormal, overflow and NaN is a bit pattern; the neighbours of a tie are where mistakes hide.
    bits = np.array([pattern & 0xFFFFFFFF for pattern in patterns] + [0x3F808000, 0x3F818000, 0x7F7FFFFF, 1], np.uint32)
    values = bits.view(np.float32)
    wanted = torch.from_numpy(values.copy()).to(torch.bfloat16)
    got = torch.from_numpy(narrow_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    same = got.view(torch.int16) == wanted.view(torch.int16)
    assert bool((same | (got.isnan() & wanted.isnan())).all())


def test_half_precision_is_rounded_once_and_not_after_every_rank():
    values = [np.array([2048.0, 1.0], "f2")] + [np.array([1.0, 1.0], "f2")] * 4
    assert run(values, "float16", ReduceOp.SUM).tolist() == [2052.0, 5.0]  # 2048 + 1 is 2048 in float16
    assert run(values, "float16", ReduceOp.MEAN).tolist() == [np.float16(2052 / 5), 1.0]


def test_sums_are_taken_in_rank_order():
    values = [np.array([x], "f4") for x in (1e8, 1.0, -1e8, 1.0)]
    assert run(values, "float32", ReduceOp.SUM).tolist() == [1.0]  # (1e8 + 1) is 1e8, - 1e8 is 0, + 1 is 1
    assert run(values[::2] + values[1::2], "float32", ReduceOp.SUM).tolist() == [2.0]


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "complex64", "bool"])
def test_the_target_may_be_any_of_the_sources(position, dtype):
    values = [np.array([i, 2 * i, 1]).astype(dtype) for i in range(1, 5)]
    wanted = run(values, dtype, ReduceOp.SUM)
    views = [value.data.cast("B") for value in values]
    reduce_into(views[position], views, dtype=dtype, op=ReduceOp.SUM)
    assert values[position].tobytes() == wanted.tobytes()


def test_bool_sums_are_or_and_products_are_and():
    values = [np.array(bits, bool) for bits in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1])]
    wanted = {
        ReduceOp.SUM: [0, 1, 1, 1],
        ReduceOp.MAX: [0, 1, 1, 1],
        ReduceOp.BOR: [0, 1, 1, 1],
        ReduceOp.PRODUCT: [0, 0, 0, 1],
        ReduceOp.MIN: [0, 0, 0, 1],
        ReduceOp.BAND: [0, 0, 0, 1],
        ReduceOp.BXOR: [0, 0, 1, 1],
    }
    assert {op: run(values, "bool", op).astype(int).tolist() for op in wanted} == wanted


def test_half_precision_complex_numbers_are_added_and_multiplied_in_single_precision():
    values = [np.array([1, 2, 0.5, -1], "f2"), np.array([3, 1, 2, 2], "f2")]
    assert run(values, "complex32", ReduceOp.SUM).tolist() == [4, 3, 2.5, 1]
    assert run(values, "complex32", ReduceOp.PRODUCT).tolist() == [1, 7, 3, -1]
    assert run(values, "complex32", ReduceOp.MEAN).tolist() == [2, 1.5, 1.25, 0.5]


def test_a_nan_survives_minimum_and_maximum_and_overflow_is_infinity():
    values = [np.array([np.nan, 1.0, 3e38], "f4"), np.array([1.0, np.nan, 3e38], "f4")]
    assert np.isnan(run(values, "float32", ReduceOp.MAX)[:2]).all()
    assert np.isnan(run(values, "float32", ReduceOp.MIN)[:2]).all()
    assert run(values, "float32", ReduceOp.SUM)[2] == np.inf


def test_integers_wrap_around():
    assert run([np.array([200], "u1"), np.array([100], "u1")], "uint8", ReduceOp.SUM).tolist() == [44]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_a_mean_of_integers_is_cut_toward_zero(dtype):
    values = [np.array(row, dtype) for row in ([7, -7, 6, -1], [0, 0, 0, 0], [1, -1, 0, 0])]
    assert run(values, dtype, ReduceOp.MEAN).tolist() == [2, -2, 2, 0]


def test_a_mean_of_integers_is_exact_where_floats_are_not_and_of_more_ranks_than_the_dtype_counts():
    largest = 2**63 - 1
    assert run([np.array([largest], "i8"), np.array([0], "i8")], "int64", ReduceOp.MEAN).tolist() == [largest // 2]
    assert run([np.array([2**64 - 1], "u8"), np.array([0], "u8")], "uint64", ReduceOp.MEAN).tolist() == [largest]
    assert run([np.array([0], "i1")] * 299 + [np.array([-100], "i1")], "int8", ReduceOp.MEAN).tolist() == [0]


def test_a_mean_of_complex_numbers_divides_both_parts_and_makes_no_nan_of_infinity():
    sources = [np.array([np.inf + 1j, 2 + 4j], np.complex64) for _ in range(2)]
    target = np.zeros(2, np.complex64)
    reduce_into(
        target.view("u1").data, [one.view("u1").data for one in sources], dtype="complex64", op=ReduceOp.MEAN, divisor=2
    )
    assert target.tolist() == [complex(np.inf, 1), 2 + 4j]


def test_the_mean_of_one_rank_is_its_value():
    assert run([np.array([3.0], "f4")], "float32", ReduceOp.MEAN).tolist() == [3.0]


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("bool", ReduceOp.MEAN),
        ("float32", ReduceOp.BAND),
        ("bfloat16", ReduceOp.BXOR),
        ("complex64", ReduceOp.MIN),
        ("float8_e4m3fn", ReduceOp.SUM),
        ("", ReduceOp.SUM),
    ],
)
def test_pairs_that_make_no_sense_are_refused(dtype, op):
    with pytest.raises(MisuseError):
        check(dtype, op)
