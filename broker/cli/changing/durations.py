"""Durations as people type them on a command line: `60s`, `10m`, `2h`, `3d`."""

from __future__ import annotations

import re

from hive_qos.errors import ConfigurationError
from hive_qos.units import parse_duration_s

DAY_S = 86_400.0
"""`parse_duration_s` ends at hours: a configuration has no days."""


def duration_s(text: str, *, option: str) -> float:
    """Read one.

    Raises:
        ConfigurationError: it is none, or none that is above zero.
    """
    days = re.fullmatch(r"([0-9]+)\s*d", text.strip())
    minutes = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*m", text.strip())
    try:
        found = int(days[1]) * DAY_S if days else parse_duration_s(f"{minutes[1]} min" if minutes else text)
    except (ValueError, OverflowError):
        found = 0.0
    if found <= 0:
        raise ConfigurationError(option, text, "write a duration, such as 60s, 10m, 2h or 3d")
    return found


def shown_s(seconds: float) -> str:
    """A duration in its two largest units: 7260 is "2 h 1 min"."""
    parts: list[str] = []
    left = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(part for part in parts[:2] if not part.startswith("0 ") or len(parts) == 1)
