"""Rates, sizes and durations as people write them, parsed once at the edge.

Rates are integer bits per second, sizes integer bytes, durations float seconds. Prefixes of rates are decimal
("40 Mbit/s" is 40 000 000); sizes take both decimal (kB, MB) and binary (KiB, MiB) prefixes.
Bytes per second exist only where the kernel wants them: `bytes_per_s_of`.
"""

from __future__ import annotations

import re
from decimal import Decimal

RATE_BITS_PER_S_MAX = 10**13
"""10 Tbit/s: above every interface there is; a larger figure is a typing error."""

_RATE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_DURATION = {"ms": Decimal("0.001"), "s": Decimal(1), "min": Decimal(60), "h": Decimal(3600)}
_NUMBER = r"([0-9]{1,30}(?:\.[0-9]{1,30})?)"


def parse_rate_bits_per_s(text: str) -> int:
    """Read "200 Mbit/s", "1.5 Gbit/s" or "800 kbit" as integer bits per second.

    Raises:
        ValueError: no such form, zero, or beyond `RATE_BITS_PER_S_MAX`; the text names what would be accepted.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([kMGT]?)bit(?:/s)?", text.strip())
    if match is None:
        raise ValueError('not a rate; write for example "200 Mbit/s"')
    rate = int(Decimal(match[1]) * _RATE[match[2]])
    if rate <= 0:
        raise ValueError("a rate must be above zero")
    if rate > RATE_BITS_PER_S_MAX:
        raise ValueError("a rate of more than 10 Tbit/s is beyond every interface")
    return rate


def parse_fraction(text: str) -> float:
    """Read "20 %" as 0.2.

    Raises:
        ValueError: no such form, or outside 0 to 100 %.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*%", text.strip())
    if match is None:
        raise ValueError('not a share; write for example "20 %"')
    fraction = float(Decimal(match[1]) / 100)
    if fraction > 1:
        raise ValueError("a share cannot be above 100 %")
    return fraction


def parse_duration_s(text: str) -> float:
    """Read "60 s", "250 ms", "5 min" or "1 h" as seconds.

    Raises:
        ValueError: no such form.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(ms|s|min|h)", text.strip())
    if match is None:
        raise ValueError('not a duration; write for example "60 s" or "250 ms"')
    return float(Decimal(match[1]) * _DURATION[match[2]])


def parse_size_bytes(text: str) -> int:
    """Read "64 KiB" or "1 GB" as bytes.

    Raises:
        ValueError: no such form.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([kMGT]?B|[KMGT]iB)", text.strip())
    if match is None:
        raise ValueError('not a size; write for example "64 KiB"')
    return int(Decimal(match[1]) * _SIZE[match[2]])


def format_rate(rate_bits_per_s: float) -> str:
    """Write a rate with three significant figures: 41 300 000 is "41.3 Mbit/s"."""
    for prefix in ("T", "G", "M", "k"):
        if abs(rate_bits_per_s) >= _RATE[prefix]:
            return (
                f"{rate_bits_per_s / _RATE[prefix]:.3g} {prefix}bit/s"
                if (abs(rate_bits_per_s) < 999.5 * _RATE[prefix])
                else f"{rate_bits_per_s / _RATE[prefix]:.0f} {prefix}bit/s"
            )
    return f"{rate_bits_per_s:.0f} bit/s"


def format_size(size_bytes: float) -> str:
    """Write a size with three significant figures and a binary prefix: 65 536 is "64 KiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size_bytes) >= _SIZE[unit]:
            return f"{size_bytes / _SIZE[unit]:.4g} {unit}"
    return f"{size_bytes:.0f} B"


def bytes_per_s_of(rate_bits_per_s: int) -> int:
    """The kernel's unit of a rate, rounded down so that a sum of parts never exceeds the whole."""
    return rate_bits_per_s // 8
