"""The raw records of a run: one JSON line a measurement, from which every figure can be computed again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tools.checkout import read_checkout

Record: TypeAlias = Mapping[str, Any]

FILE = "records.jsonl"
HEAD = "run"
"""Kind of a run's first record."""


def head_of(
    *, settings: Mapping[str, Any], scenarios: Sequence[str], versions: Mapping[str, Any], **more: Any
) -> Record:
    """A run's first record: settings, versions (the sources' among them), machine, and what a benchmark adds."""
    return {
        "kind": HEAD,
        "settings": settings,
        "scenarios": scenarios,
        "versions": {**versions, **read_checkout().as_record()},
        "machine": {"cores": os.cpu_count(), "kernel": os.uname().release, "load": os.getloadavg()[0]},
        **more,
    }


class Writer:
    """Appends records to a new file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._file = (directory / FILE).open("w", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append one, at once: a run that dies keeps what it had."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more records."""
        self._file.close()


@contextmanager
def recorded(output: Path, head: Record) -> Iterator[tuple[Writer, Path]]:
    """Records in `output` that begin with `head`, and a folder for the length of the block.

    What lies in the folder's `logs` then, the words of the programs, is in `output/logs` afterwards.
    """
    writer, folder = Writer(output), Path(tempfile.mkdtemp(prefix="hive-bench-"))
    try:
        writer.write(head)
        (folder / "logs").mkdir()
        yield writer, folder
    finally:
        writer.close()
        shutil.rmtree(output / "logs", ignore_errors=True)
        shutil.copytree(folder / "logs", output / "logs", dirs_exist_ok=True)
        shutil.rmtree(folder)


def read(directory: Path) -> tuple[Record, list[Record]]:
    """The head and the measurements of a run. A last line that was cut off is left out.

    Raises:
        OSError: there is no such file.
        ValueError: it is not one of ours.
    """
    lines = (directory / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    if not records or records[0].get("kind") != HEAD:
        raise ValueError(f"{directory / FILE} does not begin with a record of the run")
    return records[0], records[1:]
