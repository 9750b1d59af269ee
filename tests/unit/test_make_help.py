"""`make help` is the list of targets: it says what each is for, and leaves none out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = {"sanitize-address", "sanitize-thread", "sanitize-faults", "bench-nightly"}
"""Of other targets; nobody calls them by hand."""


def test_make_without_a_target_helps_and_names_every_target_in_one_line_each() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    helped = re.findall(r"^  ([a-z-]+)  +\S", done.stdout, re.MULTILINE)
    lines = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for line in lines for target in line.split()}
    assert sorted(helped) == sorted(targets - PARTS)
    assert max(map(len, done.stdout.splitlines())) <= 110
