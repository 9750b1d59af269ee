"""The last configuration that was good, kept on disk, and the one that is not to be taken up by itself.

One file in the state directory, `configuration.json`:

    good      the text in force when a start or a reload had worked, or was confirmed
    refused   a text that is on trial, or was not confirmed in time; None where there is none. It is written before the
              trial begins, so that a daemon that is killed in the middle of it starts with the good one.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hive_qos.files import write_whole

NAME = "configuration.json"
_VERSION = 1
_BYTES_MAX = 8 * 2**20
"""Two texts of at most a mebibyte each, as JSON."""


@dataclass(frozen=True)
class Kept:
    """What is remembered of configurations: whole texts, as they stood in `broker.toml`."""

    good: str | None = None
    refused: str | None = None


def read(state_directory: str) -> Kept:
    """What is kept there; nothing where the file is not there, damaged, or could be somebody else's.

    What stands in it is believed as `broker.toml` is: the directory and the file have to be root's or our own.
    """
    path = Path(state_directory) / NAME
    try:
        if not all(_ours(os.lstat(place)) for place in (state_directory, path)):
            return Kept()
        with open(path, encoding="utf-8", opener=_plainly) as file:
            entry = json.loads(file.read(_BYTES_MAX))
        good, refused = entry["good"], entry["refused"]
    except (OSError, ValueError, KeyError, TypeError):
        return Kept()
    if entry.get("version") != _VERSION or not all(text is None or isinstance(text, str) for text in (good, refused)):
        return Kept()
    return Kept(good=good, refused=refused)


def write(state_directory: str, kept: Kept) -> None:
    """Replace what is kept.

    Raises:
        OSError: it cannot be written; what was kept stays.
    """
    entry = {"version": _VERSION, "good": kept.good, "refused": kept.refused}
    write_whole(Path(state_directory) / NAME, json.dumps(entry, indent=1))


def _ours(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _plainly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
