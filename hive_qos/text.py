"""Makes text from outside safe to print: names of jobs, clients, addresses and keys may hold anything."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str, *, length_max: int = 256, lines: bool = False) -> str:
    """Escape control and other unprintable characters, and cut what is longer than `length_max`.

    Args:
        text: of any length: what would be cut anyway is not looked at.
        length_max: in characters of the result.
        lines: line breaks stay.
    """
    if len(text) <= length_max and text.isprintable():
        return text
    clean = "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text[: length_max + 1]
    )
    return clean if len(clean) <= length_max else clean[: length_max - 1] + "…"


def few(names: Sequence[str], *, at_most: int) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
