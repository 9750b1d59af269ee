"""Codecs: bounds of the error, error feedback, values that are not finite; the same bits from the native ones."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive_qos.errors import MisuseError
from transport.collectives.codecs import BLOCK_ELEMS, Codec, decode, encode, encoded_bytes

CODECS = [Codec.BFLOAT16, Codec.INT8, Codec.INT4]
STEP = {Codec.INT8: 1 / 127, Codec.INT4: 1 / 7}
lengths = st.integers(0, 3 * BLOCK_ELEMS + 1)
any_bits = st.binary(min_size=0, max_size=4 * 600)
few = settings(max_examples=60, deadline=None)


def raw(values: np.ndarray) -> memoryview:
    return values.view(np.uint8).data if values.size else memoryview(bytearray())


def encoded(values: np.ndarray, codec: Codec, residual: np.ndarray | None = None, divisor: int = 1) -> bytes:
    target = bytearray(encoded_bytes(len(values), codec))
    owed = None if residual is None else raw(residual)
    encode(memoryview(target), raw(values), owed, codec=codec, divisor=divisor)
    return bytes(target)


def decoded(source: bytes, elems: int, codec: Codec) -> np.ndarray:
    values = np.empty(elems, np.float32)
    decode(raw(values), memoryview(source), codec=codec)
    return values


def gradient(elems: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(elems) * 10.0 ** generator.integers(-30, 30)).astype(np.float32)


@pytest.mark.parametrize("codec", CODECS)
@few
@given(elems=lengths, seed=st.integers(0, 2**32))
def test_no_value_is_off_by_more_than_half_a_step_of_its_block(codec, elems, seed):
    values = gradient(elems, seed)
    result = decoded(encoded(values, codec), elems, codec)
    for start in range(0, elems, BLOCK_ELEMS):
        block = values[start : start + BLOCK_ELEMS].astype(np.float64)
        error = np.abs(result[start : start + BLOCK_ELEMS] - block)
        bound = np.abs(block) * 2**-8 if codec is Codec.BFLOAT16 else np.abs(block).max() * STEP[codec] / 2
        assert np.all(error <= bound * (1 + 1e-5))


@pytest.mark.parametrize("codec", CODECS)
@few
@given(blocks=st.integers(1, 4), tail=st.integers(0, 255), cut=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_messages_that_end_with_a_block_are_the_whole_one_cut(codec, blocks, tail, cut, seed):
    values = gradient(blocks * BLOCK_ELEMS + tail, seed)
    at = min(cut, blocks) * BLOCK_ELEMS
    assert encoded(values[:at], codec) + encoded(values[at:], codec) == encoded(values, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_with_error_feedback_the_mean_of_what_arrives_is_the_mean_of_what_was_sent(codec):
    generator = np.random.default_rng(0)
    constant = generator.standard_normal(1000).astype(np.float32)
    residual = np.zeros(1000, np.float32)
    steps = 200
    plain = decoded(encoded(constant, codec), 1000, codec) - constant
    arrived = sum(decoded(encoded(constant, codec, residual), 1000, codec).astype(np.float64) for _ in range(steps))
    off = np.abs(arrived / steps - constant)
    # All that is missing after 200 steps is what one still owes: a message's error, and so does not grow.
    assert np.allclose(arrived + residual, steps * constant.astype(np.float64), atol=steps * 1e-5)
    assert off.max() < np.abs(plain).max() / 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible_and_is_owed_to_nobody(codec, value):
    values = gradient(3 * BLOCK_ELEMS, 1) + np.float32(1)
    values[300] = value
    residual = np.zeros_like(values)
    result = decoded(encoded(values, codec, residual), len(values), codec)
    assert not np.isfinite(result[300])
    assert np.isfinite(residual).all()
    assert residual[300] == 0
    assert np.isfinite(result[:256]).all()
    assert np.isfinite(result[512:]).all()


def test_a_block_of_zeros_and_one_too_small_for_a_scale_are_zeros():
    for value in (0.0, 1e-45):
        values = np.full(BLOCK_ELEMS, value, np.float32)
        residual = np.zeros_like(values)
        assert not decoded(encoded(values, Codec.INT8, residual), BLOCK_ELEMS, Codec.INT8).any()
        assert np.array_equal(residual, values)


@pytest.mark.parametrize("codec", CODECS)
@few
@given(bits=any_bits, owed=any_bits, divisor=st.integers(1, 300))
def test_native_codecs_give_the_same_bits(codec, bits, owed, divisor):
    native = importlib.import_module("hive_qos_native")
    values = np.frombuffer(bits[: len(bits) // 4 * 4], np.float32)
    other = np.frombuffer(owed[: len(owed) // 4 * 4], np.float32)
    residual = np.resize(np.nan_to_num(other, nan=0, posinf=0, neginf=0), len(values)).astype(np.float32)
    for left in (None, residual):
        mine, theirs = (None, None) if left is None else (left.copy(), left.copy())
        wanted = encoded(values, codec, mine, divisor)
        target = bytearray(len(wanted))
        native.encode(target, raw(values), None if theirs is None else raw(theirs), int(codec), divisor)
        assert bytes(target) == wanted
        assert mine is None or theirs is None or mine.tobytes() == theirs.tobytes()
        result = np.empty(len(values), np.float32)
        native.decode(raw(result), wanted, int(codec))
        there = decoded(wanted, len(values), codec)
        assert np.array_equal(np.isnan(result), np.isnan(there))
        assert np.where(np.isnan(result), 0, result).tobytes() == np.where(np.isnan(there), 0, there).tobytes()


def test_an_unknown_compression_names_those_there_are():
    with pytest.raises(MisuseError, match="bfloat16, int8, int4, not 'int7'"):
        Codec.named("int7")
