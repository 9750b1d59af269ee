"""A file of JSON lines that another process writes, read while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """New lines of a file that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def lines(self) -> list[dict[str, Any]]:
        """What has been written whole since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, newline, _rest = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.split(b"\n") if line]
