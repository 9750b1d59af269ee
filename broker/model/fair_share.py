"""Fair sampling: where there are too many entries to look at, each owner gets as many as any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

Value = TypeVar("Value")


def in_turns(entries: Iterable[Value], *, of: Callable[[Value], object]) -> list[Value]:
    """The first entry of each owner, then the second of each, and so on; each owner's in their order."""
    taken: Counter[object] = Counter()
    turns = []
    for entry in entries:
        turns.append((taken[of(entry)], entry))
        taken[of(entry)] += 1
    return [entry for _, entry in sorted(turns, key=lambda turn: turn[0])]
