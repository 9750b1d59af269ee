"""The raw records of a run, one JSON object a line, written as things happen and read back by the report.

steps.jsonl      one line a step and rank, with the block that it belongs to
counters.jsonl   wire and CPU counters, from the samplers
events.jsonl     settings, topology, blocks, changes of the link, checks, versions, weights
status.jsonl     what the broker said of itself, while there was one
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("steps", "counters", "events", "status")


@dataclass(frozen=True)
class Records:
    """Everything that a run wrote down."""

    steps: list[dict[str, Any]]
    counters: list[dict[str, Any]]
    events: list[dict[str, Any]]
    status: list[dict[str, Any]]

    def last(self, event: str) -> dict[str, Any]:
        """The last event of a name; an empty mapping where there is none."""
        found = [entry for entry in self.events if entry["event"] == event]
        return found[-1] if found else {}

    def all(self, event: str) -> list[dict[str, Any]]:
        """Every event of a name, in order."""
        return [entry for entry in self.events if entry["event"] == event]


def read(directory: Path) -> Records:
    """Read a run's records. A last line that was cut off by the end of a process is left out.

    Raises:
        OSError: a file is missing.
        ValueError: a line in the middle is not JSON.
    """
    return Records(*(_lines(directory / f"{name}.jsonl") for name in NAMES))


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    return [json.loads(line) for line in lines]


class Recorder:
    """Writes the records of a run; the samplers write `counters.jsonl` themselves."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._files = {name: (directory / f"{name}.jsonl").open("w") for name in NAMES}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def write(self, name: str, record: Mapping[str, object]) -> None:
        """Append one line to a file, at once."""
        self._files[name].write(json.dumps(record) + "\n")
        self._files[name].flush()

    def event(self, event: str, **fields: object) -> None:
        """Append an event with the time."""
        self.write("events", {"event": event, "t_s": time.monotonic(), **fields})
