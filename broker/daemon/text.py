"""Makes text from outside safe to print: job names, client names and addresses may hold anything."""

from __future__ import annotations


def printable(text: str, *, length_max: int = 256) -> str:
    """Escape control and other unprintable characters, and cut what is longer than `length_max`."""
    clean = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return clean if len(clean) <= length_max else clean[: length_max - 1] + "…"
