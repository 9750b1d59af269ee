"""The raw records of a run: one JSON line a block, from which every figure can be computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]

FILE = "records.jsonl"
HEAD = "run"
"""Kind of the first record of each run: settings, versions, machine. A file may hold several runs in a row."""


class Writer:
    """Appends records to a file.

    Args:
        add: keep what is there.
    """

    def __init__(self, directory: Path, *, add: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._file = (directory / FILE).open("a" if add else "w", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append one, at once: a run that dies keeps what it had."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more records."""
        self._file.close()


def read(directory: Path) -> tuple[list[Record], list[Record]]:
    """The heads of the runs, and all other records. A last line that was cut off is left out.

    Raises:
        OSError: there is no such file.
        ValueError: it is not one of ours.
    """
    lines = (directory / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    if not records or records[0].get("kind") != HEAD:
        raise ValueError(f"{directory / FILE} does not begin with a record of the run")
    return [r for r in records if r["kind"] == HEAD], [r for r in records if r["kind"] != HEAD]
