"""A kernel in memory and an empty journal, for whoever shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import FakeKernel

from shaping.journal import Journal


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel(("eth0", "eth1"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)
