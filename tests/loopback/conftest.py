"""A broker for every test that asks for one; both engines for the tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_support import Running
from engine_support import NATIVE_ALWAYS
from native_cases import ALL_NATIVE, WITH_NATIVE, asks_for_native, need

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_engine_native*.py")
    if not (ALL_NATIVE or (WITH_NATIVE and path.stem in NATIVE_ALWAYS))
]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.write()
    running.start()
    assert running.error is None
    yield running
    running.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what `make test-native` alone runs to it: deselected, which is no skip that somebody has to look into."""
    left = [item for item in items if _left_to_native_run(item)]
    if left and not ALL_NATIVE:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def _left_to_native_run(item: pytest.Item) -> bool:
    name = item.path.stem
    if not item.path.is_relative_to(Path(__file__).parent):  # of another folder that is collected in the same run
        return False
    if any("empty parameter" in str(mark) for mark in item.iter_markers("skip")):
        return True
    return (name.startswith("test_engine_native") or asks_for_native(item)) and name not in NATIVE_ALWAYS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The transport's tests run over each engine; tests of the engines themselves choose pairs (engine_support)."""
    if "chosen_engine" in metafunc.fixturenames and metafunc.module.__name__.startswith("test_transport_"):
        metafunc.parametrize("chosen_engine", ["aioquic", "native"] if WITH_NATIVE else ["aioquic"], indirect=True)


@pytest.fixture(autouse=True)
def chosen_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What `HIVE_ENGINE` says in this test and in the programs that it starts; None where the test does not care."""
    name: str | None = getattr(request, "param", None)
    if name is None and not ALL_NATIVE:
        monkeypatch.setenv("HIVE_ENGINE", "aioquic")
    if name is not None:
        need(name)
        monkeypatch.setenv("HIVE_ENGINE", name)
        if hasattr(request.module, "LOCAL"):  # the settings that a module's tests begin with
            monkeypatch.setattr(request.module, "LOCAL", replace(request.module.LOCAL, engine=name))
    return name
