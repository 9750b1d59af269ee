"""What a request for `/v1/usage` asks."""

from __future__ import annotations

import math
import time
import urllib.parse
from typing import Protocol

from msgspec import Struct

from broker.model.usage import GROUPS, UsageRow


class UsageRows(Protocol):
    """Who has the rows. `HiveError` or `OSError` where they cannot be had."""

    def __call__(self, *, since_s: float, until_s: float, by: tuple[str, ...]) -> list[UsageRow]:
        """Rows of some time, divided by some of `GROUPS`."""


class UsageQuestion(Struct, frozen=True):
    """Hours that begin in [since, until), seconds since 1970, and what divides them."""

    since_s: float
    until_s: float
    by: tuple[str, ...]


def usage_question(query: str) -> UsageQuestion:
    """Read `since_s=...&until_s=...&by=class,job`; the default is all, by class.

    Raises:
        ValueError: it cannot be understood; the text says what could.
    """
    found = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=4, strict_parsing=bool(query)))
    by = tuple(found.pop("by", "class").split(",")) if found.get("by", "class") else ()
    since_s, until_s = (_seconds(found, "since_s", 0.0), _seconds(found, "until_s", time.time()))
    found.pop("by", None)
    if found:
        raise ValueError(f"/v1/usage knows since_s, until_s and by, not {', '.join(sorted(found))}")
    if unknown := [one for one in by if one not in GROUPS]:
        raise ValueError(f"by={unknown[0]}: one or more of {', '.join(GROUPS)}")
    return UsageQuestion(since_s, until_s, by)


def _seconds(found: dict[str, str], key: str, default: float) -> float:
    text = found.pop(key, None)
    value = default if text is None else float(text)
    if not math.isfinite(value):
        raise ValueError(f"{key} is a number of seconds since 1970")
    return value
