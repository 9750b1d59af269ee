"""Tests that failed and passed in a second run, kept over all runs of this machine: a name that comes back is a defect.

A machine that stands still for seconds can break any test of real time once. The same test twice is no accident: it
asks for more than a busy machine gives, or it has found something.

    python -m tools.nightly.unstable     name what came back; the exit code is 1 where anything did
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tools.checkout import read_checkout
from tools.nightly.state import state_directory

FILE = "unstable.jsonl"
Run: TypeAlias = Mapping[str, Any]
"""When it was (`at`), `commit` and `dirty`, tests that were asked `again`, and those of them that `failed_twice`."""


def keep(*, again: Sequence[str], failed_twice: Sequence[str]) -> Path:
    """Append one run to the record."""
    path = state_directory() / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    at = time.strftime("%FT%TZ", time.gmtime())
    run = {"at": at, **read_checkout().as_record(), "again": list(again), "failed_twice": list(failed_twice)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
    return path


def read(path: Path) -> list[Run]:
    """All runs of a record; none where there is no record yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def came_back(runs: Sequence[Run]) -> dict[str, int]:
    """Tests that passed only in their second run in two runs or more, and in how many.

    What failed twice does not count: that run failed for it, and it may just have been broken.
    """
    counts = Counter(test for run in runs for test in set(run["again"]) - set(run["failed_twice"]))
    return {test: count for test, count in sorted(counts.items()) if count > 1}


def main() -> int:
    """Name the tests that came back, with their runs."""
    path = state_directory() / FILE
    runs = read(path)
    found = came_back(runs)
    for test, count in found.items():
        when = ", ".join(f"{run['at']} ({run['commit']})" for run in runs if test in run["again"])
        print(f"unstable: {test}: needed a second run {count} times: {when}")
    if found:
        print(f"unstable: mend these, or what they test, and then remove their lines from {path}")
    else:
        print(f"unstable: no test needed a second run twice; {path} has {len(runs)} runs with a test that did")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
