"""Which sources a run used: the commit, and whether files differ from it.

Every record of a run carries this, so that figures of different sources are never mixed. Standard library and git only.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
COMMIT_DIGITS = 12
"""Of the commit's 40: enough to name it for good in any repository, and short enough for a table."""


@dataclass(frozen=True)
class Checkout:
    """The sources of a run.

    Args:
        commit: the commit that is checked out; None outside of a checkout, or without git.
        dirty: files differ from it, or are there that it does not know. What git ignores does not count.
    """

    commit: str | None
    dirty: bool

    @classmethod
    def from_record(cls, versions: Mapping[str, Any]) -> Self:
        """Read back what `as_record` gave; a record without it has no known commit."""
        return cls(commit=versions.get("commit"), dirty=bool(versions.get("dirty", False)))

    def as_record(self) -> dict[str, object]:
        """Give the two entries of a record's versions."""
        return {"commit": self.commit, "dirty": self.dirty}

    def __str__(self) -> str:
        if self.commit is None:
            return "an unknown commit"
        return f"{self.commit} with uncommitted changes" if self.dirty else self.commit


def read_checkout(directory: Path = ROOT) -> Checkout:
    """Ask git for the commit of a directory and for its changes, in one call."""
    git = shutil.which("git")
    if git is None:
        return Checkout(commit=None, dirty=False)
    # A checkout of another user is only read: git's guard against its configuration would leave the record empty.
    command = [git, "--no-optional-locks", "-c", "safe.directory=*", "status", "--porcelain=v2", "--branch"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), None)
    if commit is None or commit == "(initial)":
        return Checkout(commit=None, dirty=False)
    return Checkout(commit=commit[:COMMIT_DIGITS], dirty=any(not line.startswith("#") for line in lines))
