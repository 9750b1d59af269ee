"""Where the privilege for the lab is missing, CI fails; elsewhere the lab is skipped in words that nobody misses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

LACK = "no privilege: run as root"


@pytest.fixture(scope="module")
def rule() -> ModuleType:
    """The lab's conftest, as a module of its own."""
    path = Path(__file__).parents[1] / "lab" / "conftest.py"
    spec = importlib.util.spec_from_file_location("lab_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)  # for what it imports of its neighbours
        spec.loader.exec_module(module)
    return module


def test_missing_privilege_fails_under_ci_and_as_root(rule: ModuleType) -> None:
    with pytest.raises(pytest.fail.Exception, match=LACK):
        rule.end_without_privilege(LACK, must_run=True)


def test_missing_privilege_elsewhere_is_a_skip_that_says_so(rule: ModuleType) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"left out: {LACK}; with CI=1"):
        rule.end_without_privilege(LACK, must_run=False)


def test_with_privilege_the_lab_runs(rule: ModuleType) -> None:
    rule.end_without_privilege(None, must_run=True)
    rule.end_without_privilege(None, must_run=False)
