"""The raw records of a run: one JSON line a measurement, from which every figure can be computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]

FILE = "records.jsonl"
HEAD = "run"
"""Kind of the first record: settings, versions, machine, who was missing and why."""


class Writer:
    """Appends records to a new file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / FILE).open("w", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append one, at once: a run that dies keeps what it had."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more records."""
        self._file.close()


def read(directory: Path) -> tuple[Record, list[Record]]:
    """The head and the measurements of a run.

    Raises:
        OSError: there is no such file.
        ValueError: it is not one of ours.
    """
    lines = (directory / FILE).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line]
    if not records or records[0].get("kind") != HEAD:
        raise ValueError(f"{directory / FILE} does not begin with a record of the run")
    return records[0], records[1:]
