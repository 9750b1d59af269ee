"""Paths of the lab's helpers, which these tests share; their lab is checked as the lab's own tests do it."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "lab"), str(TESTS / "lab/daemon")]
