"""Whose a uid is: a subordinate one is its owner's (subuid(5)), or whoever has containers would be 65,536 users.

Shares, places and quotas are by user, so they ask here. Root's rights do not spread to its containers, nor those of
the daemon's own user: such a range counts as one user of its own, its first uid.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

SUBUID = Path("/etc/subuid")
UID_DIGITS_MAX = 10
"""Of 32 bits."""


class Owners:
    """The subordinate ranges of this host, read again when the file changes. For any thread."""

    def __init__(self, path: Path = SUBUID) -> None:
        self._path = path
        self._known: tuple[tuple[int, ...], tuple[tuple[str, int, int], ...]] = ((), ())

    def owner_of(self, uid: int) -> int:
        """The user that a uid counts as: the owner of the first range that it lies in, else itself.

        Raises:
            OSError: the file is there and cannot be read.
        """
        for name, first, count in self._ranges():
            if first <= uid < first + count:
                owner = _uid_of(name)
                return first if owner is None or owner in (0, os.geteuid()) else owner
        return uid

    def _ranges(self) -> tuple[tuple[str, int, int], ...]:
        try:
            found = self._path.stat()
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._known[0] != version:
                self._known = version, tuple(_read(self._path.read_text(errors="surrogateescape")))
        except FileNotFoundError:  # a host without subordinate users
            self._known = (), ()
        return self._known[1]


def _read(text: str) -> Iterator[tuple[str, int, int]]:
    """The ranges of a file: owner, first uid, how many. What is no range is left out, as newuidmap does."""
    for line in text.splitlines():
        name, *numbers = line.strip().split(":")
        if name and len(numbers) == 2 and all(_is_number(one) for one in numbers):
            first, count = map(int, numbers)
            if first > 0:  # uid 0 is nobody's
                yield name, first, count


def _uid_of(name: str) -> int | None:
    """The user of a name, or of a number in its place; None where there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if _is_number(name) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= UID_DIGITS_MAX


owner_of = Owners().owner_of
