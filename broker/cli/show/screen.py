"""Lines of a screen of 80 columns: a name with figures beside it, and notes below. What is long wraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hive_qos.text import printable
from hive_qos.units import format_rate, format_size

NAME, COLUMN = 18, 12
"""Of the name, and of each figure: a space and "38.8 Mbit/s". Five figures and a name are 78 columns."""
NOTE_LENGTH_MAX = 500
"""Longer than every reason of ours, and six lines at most of a text that somebody else chose."""


def line(name: str, *figures: str, style: str = "") -> RenderableType:
    """A name and its figures, right-aligned."""
    return beside(name, "".join(f"{figure:>{COLUMN}}" for figure in figures), style=style)


def beside(name: str, row: str, *, style: str = "") -> RenderableType:
    """A name and what stands beside it; a name that is longer than its column has a line of its own."""
    if cell_len(name) <= NAME:
        return Text.assemble((name + " " * (NAME - cell_len(name)), style), row)
    return Group(Text(name, style=style), Text(" " * NAME + row))


def note(text: str, *, style: str = "") -> RenderableType:
    """Something about the line above, indented, wrapped between words."""
    return Padding(Text(text, style=style), (0, 0, 0, 4), expand=False)


def items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of a list in a document of any version."""
    value = document.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def reason_text(reason: object) -> str:
    """The sentence of a reason, "" where there is none."""
    return printable(str(reason.get("text", "")), length_max=NOTE_LENGTH_MAX) if isinstance(reason, Mapping) else ""


def count(value: object) -> str:
    """A whole number, or a dash."""
    return str(value) if isinstance(value, int) else "-"


def rate(value: object) -> str:
    """A rate, 0 without a unit, or a dash."""
    return ("0" if value == 0 else format_rate(value)) if isinstance(value, (int, float)) else "-"


def size(value: object) -> str:
    """A size, 0 without a unit, or a dash."""
    return ("0" if value == 0 else format_size(value)) if isinstance(value, (int, float)) else "-"
