"""A broker for every test that asks for one; both engines for the tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_support import Running
from engine_cases import WITH_NATIVE, has_time_for, need


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.write()
    running.start()
    assert running.error is None
    yield running
    running.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what `make test-engines` alone runs to it: deselected, which is no skip that somebody has to look into."""
    left = [item for item in items if item.path.is_relative_to(Path(__file__).parent) and _is_left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def _is_left_out(item: pytest.Item) -> bool:
    if any("empty parameter" in str(mark) for mark in item.iter_markers("skip")):
        return True
    if item.path.stem.startswith("test_engine_native") and not WITH_NATIVE:
        return True
    return not has_time_for(item)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The transport's tests run over each engine; tests of the engines themselves choose pairs (engine_support)."""
    if "chosen_engine" in metafunc.fixturenames and metafunc.module.__name__.startswith("test_transport_"):
        metafunc.parametrize("chosen_engine", ["native", "aioquic"] if WITH_NATIVE else ["aioquic"], indirect=True)


@pytest.fixture(autouse=True)
def chosen_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What `HIVE_ENGINE` says in this test and in the programs that it starts; None where the test does not care."""
    name: str | None = getattr(request, "param", None)
    if name is None and not WITH_NATIVE:
        monkeypatch.setenv("HIVE_ENGINE", "aioquic")
    if name is not None:
        need(name)
        monkeypatch.setenv("HIVE_ENGINE", name)
        if hasattr(request.module, "LOCAL"):  # the settings that a module's tests begin with
            monkeypatch.setattr(request.module, "LOCAL", replace(request.module.LOCAL, engine=name))
    return name
