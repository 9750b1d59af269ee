"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from engine_cases import WITH_NATIVE, asks_for, left_out
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a shared machine; pytest's own limit ends what hangs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _nothing_takes_the_place_of_the_tests() -> Iterator[None]:
    """A program that tests become instead of calling it ends well, and all the tests that were left with it."""
    own, become = os.getpid(), {name: getattr(os, name) for name in ("execv", "execve")}

    def guarded(name: str) -> Any:
        def instead(path: Any, *rest: Any) -> None:
            assert os.getpid() != own, f"the tests would have become {path}"
            become[name](path, *rest)  # of a forked child

        return instead

    with pytest.MonkeyPatch.context() as patch:
        for name in become:
            patch.setattr(os, name, guarded(name))
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what asks for the native engine where it is not built: deselected, which is no skip to look into."""
    left = [] if WITH_NATIVE else [item for item in items if asks_for("native", item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if line := left_out():
        terminalreporter.write_line(line)
