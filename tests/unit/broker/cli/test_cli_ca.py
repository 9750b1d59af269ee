"""`hive-qos ca` as an operator uses it over the years: what is due is said, and each step says the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.cli.app import app
from broker.peers import own_certificate

RUN = CliRunner()
COLUMNS = 80


class Ca:
    """Commands on one CA, and what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "ca"

    def says(self, *arguments: str, code: int = 0) -> str:
        found = RUN.invoke(app, ["ca", *arguments, "--directory", str(self.home)])
        assert found.exit_code == code, found.output
        return found.output.replace(str(self.home), "CA")

    def issue(self, node: str, *more: str) -> None:
        self.says("issue", node, "--out", str(self.folder / "pairs"), *more)

    def document(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.says(*arguments, "--json"))
        return found

    def states(self) -> dict[str, str]:
        return {one["node"]: one["state"] for one in self.document("status")["nodes"]}


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    found = Ca(tmp_path)
    found.says("init", "--name", "a site")
    return found


def test_status_has_every_nodes_newest_certificate_and_what_to_do(ca: Ca) -> None:
    assert "nothing was issued yet" in ca.says("status")
    ca.issue("trainer", "--days", "400")
    ca.issue("old", "--days", "10")
    ca.issue("storage", "--role", "broker", "--address", "10.0.0.1")
    ca.issue("gone")
    ca.says("revoke", "gone")
    said = ca.says("status")
    assert all(len(line) <= COLUMNS for line in said.splitlines()), said
    rows = [line.split() for line in said.splitlines()]
    assert [row[0] for row in rows if row and row[-1] == "revoked" and len(row) == 4] == ["gone"]
    assert [row[1] for row in rows if row and row[0] == "storage"] == ["broker"]
    assert "1 to renew: hive-qos ca renew --all --within 30d -d CA" in said
    assert ca.states() == {"gone": "revoked", "old": "ends soon", "storage": "good", "trainer": "good"}


def test_renewing_all_that_is_due_leaves_nothing_due(ca: Ca) -> None:
    ca.issue("old", "--days", "10")
    ca.issue("trainer")
    pairs = str(ca.folder / "pairs")
    before = (ca.folder / "pairs" / "trainer.crt").read_bytes()
    assert "old.crt" in ca.says("renew", "--all", "--within", "30d", "--out", pairs)
    assert (ca.folder / "pairs" / "trainer.crt").read_bytes() == before
    assert ca.says("renew", "--all", "--within", "30", "--out", pairs) == "nothing is due\n"
    assert set(ca.states().values()) == {"good"}


def test_each_step_of_a_rotation_says_the_next_and_refuses_to_be_taken_too_early(ca: Ca) -> None:
    ca.issue("trainer")
    assert "now use begin" in ca.says("rotate", "switch", code=3)
    begun = ca.says("rotate", "begin")
    assert "copy CA/ca.crt to every node" in begun
    assert "hive-qos ca rotate switch -d CA" in begun
    assert ca.says("rotate") == begun, "asked again, it says the same"
    assert "now use switch or cancel" in ca.says("rotate", "finish", code=3)
    switched = ca.says("rotate", "switch")
    assert "hive-qos ca renew --all --within 0 -d CA" in switched
    assert ca.states() == {"trainer": "former CA"}
    assert "1 nodes have certificates of the former CA: trainer" in ca.says("rotate", "finish", code=3)
    ca.says("renew", "--all", "--within", "0", "--out", str(ca.folder / "pairs"))
    assert "trusted any more" in ca.says("rotate", "finish")
    document = ca.document("status")
    assert (document["rotation"], len(document["authorities"])) == ("steady", 1)


def test_a_ca_that_ends_soon_is_said_until_a_rotation_begins(tmp_path: Path) -> None:
    ca = Ca(tmp_path)
    ca.says("init", "--days", "50")
    assert "the CA ends in 49 days: hive-qos ca rotate begin -d CA" in ca.says("status")
    ca.says("rotate", "begin")
    assert "the CA ends" not in ca.says("status")


def test_the_command_and_the_brokers_warn_of_the_cas_end_at_the_same_time() -> None:
    from broker.cli.ca.lifecycle import CA_WARN_DAYS

    assert CA_WARN_DAYS == own_certificate.CA_WARN_DAYS


def test_a_cas_name_from_outside_is_escaped(tmp_path: Path) -> None:
    ca = Ca(tmp_path)
    ca.says("init", "--name", "red\x1b[31m")
    assert "\x1b" not in ca.says("status")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["renew"], 2, "name the nodes, or say --all"),
        (["renew", "a", "--all"], 2, "name the nodes, or say --all"),
        (["renew", "a"], 3, "hive-qos ca issue a"),
        (["renew", "--all", "--within", "soon"], 2, "30 or 30d"),
        (["rotate", "turn"], 2, "turn"),
    ],
)
def test_what_cannot_be_done_is_said_with_what_to_do(ca: Ca, arguments: list[str], code: int, says: str) -> None:
    assert says in ca.says(*arguments, code=code)


@pytest.mark.parametrize("command", [["status"], ["renew", "--all"], ["rotate"], ["rotate", "begin"]])
def test_where_there_is_no_ca_the_way_to_one_is_said(tmp_path: Path, command: list[str]) -> None:
    assert "run hive-qos ca init" in Ca(tmp_path).says(*command, code=3)
