"""The journal keeps what was at a root over crashes, and says so when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hive_qos.errors import ShapingError
from shaping.journal import Journal
from shaping.model.observations import PriorQdisc

PRIOR = PriorQdisc("tbf", 7, {"raw": "2800", "readable": {"attrs": ["x"]}}, nested=2)


def test_what_was_written_is_read_back_by_another_process(tmp_path: Path) -> None:
    Journal(tmp_path / "state").write("eth0", PRIOR)
    assert Journal(tmp_path / "state").read("eth0") == PRIOR
    assert Journal(tmp_path / "state").interfaces() == ("eth0",)


def test_an_entry_of_an_earlier_start_of_the_machine_is_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    journal.write("eth0", PRIOR)
    assert journal.read_of_this_boot("eth0") == PRIOR
    for boot in ("another", ""):
        monkeypatch.setattr("shaping.journal._boot", lambda boot=boot: boot)
        assert journal.read_of_this_boot("eth0") is None
        assert journal.read("eth0") == PRIOR


def test_an_entry_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("eth0", PRIOR)
    journal.write("eth0", PriorQdisc("noqueue", 0))
    assert journal.read("eth0") == PriorQdisc("noqueue", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["qdisc-eth0.json"]


def test_an_unknown_interface_has_no_entry_and_forgetting_it_is_harmless(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "not-there")
    assert journal.read("eth0") is None
    assert journal.interfaces() == ()
    journal.forget("eth0")


def test_only_root_may_look_into_a_directory_that_we_made(tmp_path: Path) -> None:
    Journal(tmp_path / "state").write("eth0", PRIOR)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "{}", json.dumps({"version": 2}), json.dumps({"version": 1, "kind": "tbf", "options": 3})],
)
def test_a_damaged_entry_is_named_and_not_guessed_at(tmp_path: Path, text: str) -> None:
    (tmp_path / "qdisc-eth0.json").write_text(text)
    with pytest.raises(ShapingError, match=r"qdisc-eth0\.json is not a journal entry"):
        Journal(tmp_path).read("eth0")


@pytest.mark.parametrize("name", ["../etc/passwd", "", ".", "..", "a b", "x" * 16])
def test_what_is_no_interface_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of an interface"):
        Journal(tmp_path).write(name, PRIOR)


def test_entries_go_with_interfaces_that_are_renamed_even_to_each_others_names(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    other = PriorQdisc("noqueue", 0)
    journal.write("eth0", PRIOR)
    journal.write_segments("eth0", 7)
    journal.write("eth1", other)
    journal.write_line("eth1", 1000)
    journal.rename({"eth0": "eth1", "eth1": "lan0", "eth9": "eth8"})
    assert (journal.read("eth1"), journal.read_segments("eth1"), journal.read_line("eth1")) == (PRIOR, 7, None)
    assert (journal.read("lan0"), journal.read_line("lan0")) == (other, 1000)
    assert journal.interfaces() == ("eth1", "lan0")
    assert json.loads((tmp_path / "qdisc-eth1.json").read_text())["interface"] == "eth1"


def test_what_somebody_else_has_put_beside_the_entries_is_no_interface(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write_segments("eth0", 7)
    entry = next(tmp_path.glob("*eth0*"))
    for copy in ("gso-eth0-backup-20261201.json", "gso-eth0 (copy).json", "qdisc-.json"):
        (entry.parent / copy).write_bytes(entry.read_bytes())
    assert journal.interfaces() == ("eth0",)
