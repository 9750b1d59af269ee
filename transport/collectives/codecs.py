"""How a collective's float32 values are encoded for the wire where its callers ask for fewer bytes: the reference.

| codec | bytes | a value x of a block whose largest magnitude is m |
|---|---|---|
| BFLOAT16 | 2 a value | x rounded to bfloat16, to nearest, ties to even |
| INT8 | 4 + k for a block of k | code rint(x / s), from -127 to 127, times s = m / 127 |
| INT4 | 4 + ceil(k / 2) for a block of k | code rint(x / s), from -7 to 7, times s = m / 7 |

A block is BLOCK_ELEMS values, the last of a message what is left. Its bytes are the scale s, a little-endian float32,
and the codes: one byte each, or two in a byte, the first in the lower half, both in two's complement. Each operation is
one of IEEE float32 and rounds to nearest, ties to even; so native/src/collective/codecs.rs gives the same bits.

A block of zeros, or with m too small for s, has s = 0. A block that holds an infinity or a NaN has the scale NaN and so
decodes to NaN altogether: an overflow in training stays visible. BFLOAT16 keeps infinities and NaNs one by one.

Error feedback (Seide et al., 2014; Karimireddy et al., 2019): with a residual, x is the value plus what the residual
holds, which then becomes x minus what x decodes to, or 0 where that is not finite. So what is left out of one message
is in the next of the same values, and over many of them nothing is lost. A residual is in units of the result: a value
that is yet to be divided by n is owed n times as much. So nothing is lost either if n or the rank that divides changes.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hive_qos.errors import MisuseError
from transport.collectives.kernels import narrow_bfloat16, widen_bfloat16

Array: TypeAlias = npt.NDArray[Any]

BLOCK_ELEMS = 256
"""Values of one scale: 4 bytes more for 256 (INT8) or 128 (INT4)."""
SCALE_BYTES = 4
ENCODED_DTYPE = "uint8"
"""Of a message that carries encoded values, in its header."""
_INFINITY_BITS = np.uint32(0x7F80_0000)
_MAGNITUDE_BITS = np.uint32(0x7FFF_FFFF)
_NAN = np.array(0x7FC0_0000, dtype=np.uint32).view(np.float32)


class Codec(enum.IntEnum):
    """How values are encoded; the numbers are those of an encoded schedule."""

    NONE = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3

    @classmethod
    def named(cls, name: str) -> Codec:
        """By its lower-case name; "" and "none" for none.

        Raises:
            MisuseError: there is none of that name.
        """
        by_name = {"": cls.NONE, **{codec.name.lower(): codec for codec in cls}}
        if name not in by_name:
            raise MisuseError(f"compression is one of {', '.join(list(by_name)[1:])}, not {name!r}")
        return by_name[name]


_CODE_MAX = {Codec.INT8: 127, Codec.INT4: 7}


def encoded_bytes(elems: int, codec: Codec) -> int:
    """Length of so many float32 values in one message."""
    match codec:
        case Codec.NONE:
            return 4 * elems
        case Codec.BFLOAT16:
            return 2 * elems
    scales = SCALE_BYTES * -(-elems // BLOCK_ELEMS)
    return scales + (elems if codec is Codec.INT8 else -(-elems // 2))


def encode(
    target: memoryview, source: memoryview, residual: memoryview | None, *, codec: Codec, divisor: int | None = None
) -> None:
    """Encode values, see the module.

    Args:
        target: `encoded_bytes` of them, written.
        source: float32.
        residual: float32, as many, read and written; None: without error feedback.
        divisor: what the values are yet to be divided by, None for nothing. The residual's are divided.
    """
    divide_by = np.float32(divisor or 1)
    with np.errstate(all="ignore"):  # infinities and NaNs are values here
        values = np.frombuffer(source, dtype=np.float32)
        owed = None if residual is None else np.frombuffer(residual, dtype=np.float32)
        if owed is not None:
            values = values + owed * divide_by
        if codec is Codec.BFLOAT16:
            np.frombuffer(target, dtype=np.uint8)[:] = narrow_bfloat16(values).view(np.uint8)
        else:
            _encode_blocks(target, values, codec)
        if owed is not None:
            decoded = np.empty_like(values)
            decode(decoded.view(np.uint8).data, target, codec=codec)
            left = (values - decoded) / divide_by
            owed[:] = np.where(np.isfinite(left), left, np.float32(0))


def decode(target: memoryview, source: memoryview, *, codec: Codec) -> None:
    """Decode values, see the module.

    Args:
        target: float32, written.
        source: `encoded_bytes` of them.
    """
    values = np.frombuffer(target, dtype=np.float32)
    if codec is Codec.BFLOAT16:
        values[:] = widen_bfloat16(source)
        return
    with np.errstate(all="ignore"):
        full = len(values) // BLOCK_ELEMS * BLOCK_ELEMS
        at = encoded_bytes(full, codec)
        for part, raw in ((values[:full], source[:at]), (values[full:], source[at:])):
            if len(part):
                _decode_blocks(part, raw, codec)


def _encode_blocks(target: memoryview, values: Array, codec: Codec) -> None:
    limit = np.float32(_CODE_MAX[codec])
    padded = np.zeros(-(-len(values) // BLOCK_ELEMS) * BLOCK_ELEMS, dtype=np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, BLOCK_ELEMS)
    peaks = (blocks.view(np.uint32) & _MAGNITUDE_BITS).max(axis=1)
    scales = np.where(peaks < _INFINITY_BITS, peaks.view(np.float32) / limit, _NAN)
    codes = np.rint(np.clip(blocks / scales[:, None], -limit, limit))
    codes = np.where(scales[:, None] > 0, codes, np.float32(0)).astype(np.int8).view(np.uint8)
    if codec is Codec.INT4:
        codes = (codes[:, 0::2] & 0xF) | (codes[:, 1::2] << 4)
    rows = np.concatenate((scales[:, None].view(np.uint8), codes), axis=1)
    raw = rows.reshape(-1)
    np.frombuffer(target, dtype=np.uint8)[:] = raw[: encoded_bytes(len(values), codec)]


def _decode_blocks(values: Array, source: memoryview, codec: Codec) -> None:
    """Equally long blocks: full ones, or one that is shorter."""
    length = min(len(values), BLOCK_ELEMS)
    rows = np.frombuffer(source, dtype=np.uint8).reshape(-1, encoded_bytes(length, codec))
    scales = np.ascontiguousarray(rows[:, :SCALE_BYTES]).view(np.float32)
    codes = rows[:, SCALE_BYTES:].view(np.int8)
    if codec is Codec.INT4:
        halves = np.stack((codes << 4, codes), axis=-1) >> 4  # arithmetic shifts keep the sign
        codes = halves.reshape(len(rows), -1)[:, :length]
    values[:] = (codes.astype(np.float32) * scales).reshape(-1)
