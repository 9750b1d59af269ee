"""The reference of broker.toml has every key that the reader knows, with the default and the range that it enforces."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from documents import DOCS, table_below, tables_of

from broker.cli.changing.check_command import MistakenFileError, checked_text
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import CLASS_NAMES, Policy

PAGE = DOCS / "reference" / "configuration.md"
PEERS = {"ca": '"/etc/ca.crt"', "certificate": '"/etc/n.crt"', "key": '"/etc/n.key"'}
SCHEDULE = {"name": '"night"', "from": '"20:00"', "to": '"08:00"', "timezone": '"UTC"', "class": "{storage={weight=3}}"}
SECTIONS: dict[str, dict[str, str]] = {
    "[[interface]]": {"name": '"eth0"'},
    "[job.NAME]": {},
    "[[schedule]]": SCHEDULE,
    "[daemon]": {},
    "[probe]": {"targets": '["10.0.0.1"]'},
    "[peers]": PEERS,
}
"""Each section but those of classes, with what it needs to be taken at all."""
IN_WORDS = {"required", "everybody", "every day", "none"}
"""Defaults that no value stands for."""
ROWS = [
    pytest.param(section, *row[:3], id=f"{section}-{row[0]}")
    for section in SECTIONS
    for row in table_below(PAGE, section).rows
]
CLASS_ROWS = [pytest.param(row, id=row[0]) for row in table_below(PAGE, "[class.NAME]").rows]


def policy(section: str = "[daemon]", **keys: str) -> Policy:
    """Read a file with one section, which has what it needs and these keys."""
    values = {name: value for name, value in (SECTIONS.get(section, {}) | keys).items() if value}
    lines = [f"{name} = {value}" for name, value in values.items()]
    before = "version = 1\n" + ("" if section == "[[interface]]" else '[[interface]]\nname = "eth0"\n')
    return load("\n".join([before, section, *lines, ""]))


def refused(section: str, **keys: str) -> str:
    with pytest.raises(ConfigurationErrors) as problems:
        policy(section, **keys)
    return str(problems.value)


def known_in(section: str) -> set[str]:
    """The keys that the reader knows in a section, as it names them to whoever writes another one."""
    found = re.search(r"known here: ([a-z_, ]+)", refused(section, qqqqqqqq="1"))
    assert found is not None
    return set(found[1].split(", "))


def ends_of(text: str) -> tuple[str, str] | None:
    """The two values of a range, as TOML; None where it is one in words. A share's may be outside for other reasons."""
    value = r'("[0-9.]+ [^"%]+"|[0-9.]+)'
    found = re.match(rf"^(?:{value}|above 0,) to {value}(?:, or .*)?$", text)
    return None if found is None else (found[1] or "0.001", found[2])


def scaled(value: str, factor: float) -> str:
    """A value a little less or more."""
    number, unit = re.fullmatch(r'"?([0-9.]+)( [^"]+)?"?', value).groups()
    if unit is None:
        return "0" if value == "0.001" else str(int(number) + (1 if factor > 1 else -1))
    return f'"{float(number) * factor:g}{unit}"'


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_every_key_that_the_reader_knows(section: str) -> None:
    assert {row[0] for row in table_below(PAGE, section).rows} == known_in(section.replace("NAME", "J"))


def test_classes_have_every_key_that_the_reader_knows() -> None:
    first, meanings = (table for table in tables_of(PAGE) if table.heading == "[class.NAME]")
    assert first.titles == ("key", *CLASS_NAMES, "range")
    assert {row[0] for row in first.rows} == known_in("[class.compute]")
    assert {row[0] for row in meanings.rows} == known_in("[class.compute]") - {"match", "programs"}


@pytest.mark.parametrize(("section", "key", "default", "_"), ROWS)
def test_a_default_that_is_written_changes_nothing(section: str, key: str, default: str, _: str) -> None:
    section = section.replace("NAME", "J")
    if default == "required":
        assert key in refused(section, **{key: ""})
    elif default not in IN_WORDS:
        assert policy(section, **{key: default}) == policy(section)


@pytest.mark.parametrize("row", CLASS_ROWS)
def test_a_default_of_a_class_that_is_written_changes_nothing(row: tuple[str, ...]) -> None:
    key, *defaults, _ = row
    for name, default in zip(CLASS_NAMES, defaults, strict=True):
        assert policy(f"[class.{name}]", **{key: default}) == policy(f"[class.{name}]")
        if key == "priority":
            assert policy().class_policy(name).priority == int(default)


@pytest.mark.parametrize(("section", "key", "_", "given"), ROWS)
def test_a_range_ends_where_the_reader_ends_it(section: str, key: str, _: str, given: str) -> None:
    ends = ends_of(given)
    if ends is not None:
        check(section.replace("NAME", "J"), key, *ends)


@pytest.mark.parametrize("row", CLASS_ROWS)
def test_a_range_of_a_class_ends_where_the_reader_ends_it(row: tuple[str, ...]) -> None:
    ends = ends_of(row[-1])
    if ends is not None:
        check("[class.other]", row[0], *ends)


def check(section: str, key: str, low: str, high: str) -> None:
    for inside in (low, high):
        policy(section, **{key: inside})
    below = scaled(low, 0.9)
    if not below.startswith("-"):
        assert key in refused(section, **{key: below})
    assert key in refused(section, **{key: scaled(high, 1.1)})


def test_enough_ranges_are_compared() -> None:
    ranges = [row.values[3] for row in ROWS] + [cast(Any, row.values[0])[-1] for row in CLASS_ROWS]
    assert sum(ends_of(str(one)) is not None for one in ranges) >= 9


def test_choices_that_the_page_names_are_taken_and_others_are_not() -> None:
    for section, key in (("[[interface]]", "gso_max_segs"), ("[peers]", "engine")):
        (row,) = (row for row in table_below(PAGE, section).rows if row[0] == key)
        for choice in row[2].split(", "):
            policy(section, **{key: choice})
        assert key in refused(section, **{key: '"nosuch"'})


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in table_below(PAGE, "match").rows])
def test_a_rule_is_taken_where_the_page_says_so(row: tuple[str, ...]) -> None:
    kind, _, value, classes = row
    if kind == "cgroup":
        values = ['"hive.slice"']
    elif kind == "address":
        values = value.split(", ")
    else:
        low, high = value.split(" to ")
        values = [low, high]
        assert kind in refused("[class.storage]", match=f"[{{ {kind} = {int(high) + 1} }}]")
    for name in CLASS_NAMES:
        for one in values:
            rule = f"[{{ {kind} = {one} }}]"
            if classes == "all classes" or name in classes.split(", "):
                assert policy(f"[class.{name}]", match=rule).class_policy(name).match
            else:
                assert "anybody can choose" in refused(f"[class.{name}]", match=rule)


def test_the_rules_of_the_page_are_all_that_there_are() -> None:
    said = refused("[class.storage]", match="[{}]")
    kinds = re.search(r"exactly one of ([a-z, ]+) in each", said)
    assert kinds is not None
    assert {row[0] for row in table_below(PAGE, "match").rows} == set(kinds[1].split(", "))


def test_the_mistakes_that_the_page_shows_are_said_so() -> None:
    text = 'version = 1\n[[interface]]\nname = "eth0"\negress = "0 Mbit/s"\n[class.stroage]\nfloor = "1 %"\n'
    with pytest.raises(MistakenFileError) as problems:
        checked_text(text, file=Path("/etc/hive-qos/broker.toml"))
    page = PAGE.read_text(encoding="utf-8")
    assert f"```text\n{problems.value}\n```" in page
    assert tomllib.loads(text)["version"] == 1
