"""The documents name the environment variables that the code reads, all of them and no others, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, ROOT, name_of, pages, table_below

from broker.client.protocol import session_socket_path
from hive_qos.errors import ConfigurationError
from transport.settings import SECRET_BYTES_MIN, Settings

READERS = ("hive_qos", "transport", "broker", "shaping", "integrations")
BUILD = {"HIVE_NATIVE_BUILD", "HIVE_NATIVE_TARGET"}
"""Read by setup.py."""
OF_TESTS = {"HIVE_TEST_ENGINES", "HIVE_TEST_PATIENCE", "HIVE_TEST_STATE"}


def read_by_code() -> set[str]:
    """Every `HIVE_*` variable that a package looks up: its name stands in quotes there."""
    found = set()
    for package in READERS:
        for source in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r"[\"'](HIVE_[A-Z_]+)[\"']", source.read_text(encoding="utf-8")))
    return found


def table() -> dict[str, tuple[str, str]]:
    """Meaning and default of each variable in the reference."""
    found = {}
    for names, meaning, default in table_below(DOCS / "reference" / "transport.md", "Environment variables").rows:
        for name in re.findall(r"HIVE_[A-Z_]+", names):
            found[name] = (meaning, default)
    return found


def test_the_reference_has_every_variable_that_the_code_reads_and_no_other() -> None:
    assert set(table()) == read_by_code()


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_a_page_names_no_variable_that_nobody_reads(page: Path) -> None:
    named = set(re.findall(r"\bHIVE_[A-Z]+(?:_[A-Z]+)*\b", page.read_text(encoding="utf-8")))
    assert named <= read_by_code() | BUILD | OF_TESTS


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HIVE_ENGINE", Settings.engine),
        ("HIVE_CONGESTION", Settings.congestion),
        ("HIVE_JOB", Settings.job),
    ],
)
def test_the_default_of_a_variable_is_the_codes(variable: str, value: str) -> None:
    assert table()[variable][1].split(":")[0] == value


def test_the_default_socket_is_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIVE_BROKER", raising=False)
    assert table()["HIVE_BROKER"][1] == session_socket_path()


def test_the_bounds_of_a_variable_are_the_codes() -> None:
    assert f"at least {SECRET_BYTES_MIN} bytes" in table()["HIVE_JOB_SECRET"][0]


@pytest.mark.parametrize("variable", ["HIVE_ENGINE", "HIVE_CONGESTION"])
def test_the_values_of_a_variable_are_those_that_the_code_takes(variable: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_environment({variable: "nosuch"})
    taken = set(refused.value.reason.removeprefix("one of ").split(", "))
    meaning, _ = table()[variable]
    assert set(re.findall(r"[a-z]+", meaning.partition(":")[2].partition(".")[0])) - {"or"} == taken
