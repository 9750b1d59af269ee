"""Names of element types on the wire and their sizes: what numpy, ml_dtypes and torch have in common.

A name is numpy's where numpy has one, torch's otherwise. Elements are little-endian; a complex number is its real part
followed by its imaginary part; bool is one byte, 0 or 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "complex32": 4,
        "complex64": 8,
        "complex128": 16,
    }
)
"""Bytes of one element, by wire name."""


def item_bytes(name: str) -> int:
    """Bytes of one element of a wire name; plain bytes ("") have 1.

    Raises:
        KeyError: no such name.
    """
    return 1 if name == "" else ITEM_BYTES[name]
