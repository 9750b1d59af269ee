"""`hive-qos doctor` says which engine runs and why, whatever is installed here."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from broker.cli.doctor import doctor_command
from transport.engine import NATIVE_MODULE


def findings(monkeypatch: pytest.MonkeyPatch, *, native: str | None, wish: str | None) -> dict[str, tuple[str, str]]:
    """What doctor finds of the engines where native has this version (None: is not there) and HIVE_ENGINE is `wish`."""
    module = None
    if native is not None:
        module = ModuleType(NATIVE_MODULE)
        vars(module)["__version__"] = native
    monkeypatch.setitem(sys.modules, NATIVE_MODULE, module)  # None there makes the import fail
    if wish is None:
        monkeypatch.delenv("HIVE_ENGINE", raising=False)
    else:
        monkeypatch.setenv("HIVE_ENGINE", wish)
    return {finding.what: (finding.verdict, finding.text) for finding in doctor_command._engines()}


def test_without_a_wish_native_runs_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, native="1.2.3", wish=None)
    assert found["engine native"] == ("good", "1.2.3")
    assert found["engine in use"] == ("good", "native, because it is here")


def test_where_native_is_not_aioquic_runs_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, native=None, wish="auto")
    verdict, text = found["engine native"]
    assert verdict == "note"
    assert NATIVE_MODULE in text
    assert found["engine in use"] == ("good", "aioquic, because native is not here")


def test_a_wish_for_aioquic_holds_although_native_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, native="1.2.3", wish="aioquic")
    assert found["engine in use"] == ("good", "aioquic, because HIVE_ENGINE says so")


@pytest.mark.parametrize("wish", ["native", "quiche"])
def test_a_wish_that_cannot_be_had_is_bad(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    verdict, text = findings(monkeypatch, native=None, wish=wish)["engine in use"]
    assert verdict == "bad"
    assert f"HIVE_ENGINE={wish}" in text
