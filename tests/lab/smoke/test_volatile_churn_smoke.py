"""Random kills and cut links over the lab's links for some seconds: commits agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_members_that_are_disturbed_for_some_seconds_commit_the_same_weights() -> None:
    command = [sys.executable, "-m", "tools.measure.volatile_churn", "--seconds=12"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the hashes of the weights are the same after every commit" in run.stdout
