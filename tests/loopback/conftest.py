"""A broker for every test that asks for one; both engines for the tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_support import Running
from engine_support import WITH_NATIVE, need

collect_ignore_glob = [] if WITH_NATIVE else ["test_engine_native*.py"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.write()
    running.start()
    assert running.error is None
    yield running
    running.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of nothing but the native engine belong to `make test-native`: here they are none, and not skipped ones."""
    of_native = [item for item in items if any("empty parameter" in str(mark) for mark in item.iter_markers("skip"))]
    if of_native and not WITH_NATIVE:
        config.hook.pytest_deselected(items=of_native)
        items[:] = [item for item in items if item not in of_native]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The transport's tests run over each engine; tests of the engines themselves choose pairs (engine_support)."""
    if "chosen_engine" in metafunc.fixturenames and metafunc.module.__name__.startswith("test_transport_"):
        metafunc.parametrize("chosen_engine", ["aioquic", "native"] if WITH_NATIVE else ["aioquic"], indirect=True)


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
