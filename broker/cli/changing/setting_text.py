"""A setting of `hive-qos set` in one line, for `set --list` and `status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.cli.changing.durations import shown_s
from hive_qos.text import printable


def setting_text(one: Mapping[str, Any]) -> str:
    """Such as "class storage: guarantee=30%, for 1 h more"; from a document of any version."""
    kind, name, key, value = (printable(str(one.get(part, "?"))) for part in ("kind", "name", "key", "value"))
    left_s = one.get("left_s")
    end = f"for {shown_s(left_s)} more" if isinstance(left_s, (int, float)) else "kept"
    return f"{kind} {name}: {key}={value}, {end}"
