"""A kernel in memory and an empty journal, for whoever shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaping.journal import Journal
from shaping.testing import FakeKernel


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel(("eth0", "eth1"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)
