"""What the pages for operators and the reference of the broker say is what the code does."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, ROOT, fences_of, name_of, table_below, tables_of
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.exits import MEANINGS, ExitCode
from tools.docs_tables import pages, with_tables
from tools.lab import description as lab_description
from tools.simulate import scenario

API, CLI, SUPPORT = DOCS / "reference/broker-api.md", DOCS / "reference/cli.md", DOCS / "operate/support-matrix.md"
SCREEN = Path(__file__).parents[1] / "broker/cli/screens/sharing.txt"


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_tables_that_are_made_from_the_code_are_as_the_code_makes_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `python -m tools.docs_tables`"


def test_the_tables_that_are_made_from_the_code_are_in_use() -> None:
    made = set(re.findall("<!-- table: ([a-z-]+) -->", "".join(page.read_text(encoding="utf-8") for page in pages())))
    assert made == {
        "alarms",
        "commands",
        "faults",
        "http-paths",
        "log-events",
        "metrics",
        "programs",
        "reasons",
        "status-keys",
    }


def test_the_page_has_every_exit_code_with_its_meaning() -> None:
    rows = table_below(CLI, "Exit codes").rows
    assert [(int(code), meaning) for code, meaning, _ in rows] == [(one.value, MEANINGS[one]) for one in ExitCode]


def test_every_error_code_of_a_session_is_one_that_the_broker_gives() -> None:
    given = {
        node.value
        for folder in ("broker", "hive_qos")
        for source in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    tables = [table for table in tables_of(API) if table.titles == ("code", "why")]
    named = {code for table in tables for row in table.rows for code in row[0].split(", ")}
    assert len(tables) == 2
    assert len(named) > 15
    assert named <= given


def test_refusals_between_brokers_are_those_that_the_broker_gives() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "broker").rglob("*.py"))
    table = table_below(DOCS / "reference/broker-protocol.md", "Refusals")
    named = {code for row in table.rows for code in row[0].split(", ")}
    assert {code for code in named if f'"{code}"' not in text} == set()


def test_the_screen_of_the_first_hour_is_the_one_that_the_command_paints() -> None:
    shown = [one.text for one in fences_of(DOCS / "operate/first-hour.md") if one.text.startswith("trainer-1: ")]
    assert shown == [SCREEN.read_text(encoding="utf-8")]


def undated(lines: list[str]) -> list[str]:
    """The lines without what depends on the day."""
    return [re.sub(r"\d{4}-\d\d-\d\d", "a day", line) for line in lines]


def test_the_commands_of_the_certificates_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for fence in fences_of(DOCS / "operate/certificates.md"):
        if fence.language != "console":
            continue
        command, *output = fence.text.splitlines()
        words = [word.replace("~", str(tmp_path)) for word in shlex.split(command.removeprefix("$ "))]
        assert words[0] == "hive-qos"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, done.output
        if output:
            shown = [line.replace("/root/", f"{tmp_path}/") for line in output]
            assert undated(done.output.splitlines()) == undated(shown)
        else:
            assert "CN=trainer-1-broker" in done.output


@pytest.mark.parametrize(
    ("page", "read"), [("lab", lab_description.parse), ("simulator", scenario.parse)], ids=["lab", "simulator"]
)
def test_the_networks_that_the_pages_show_can_be_read(page: str, read: Any) -> None:
    shown = [one.text for one in fences_of(DOCS / f"reference/{page}.md") if one.language == "toml"]
    assert shown
    for text in shown:
        read(text)


def test_the_support_matrix_has_the_pythons_and_the_torch_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"\b3\.1[0-9]\b(?!t)", " ".join(row[0] for row in table_below(SUPPORT, "Python").rows))
    known = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d", one)]
    assert sorted(set(named)) == known
    (torch,) = project["optional-dependencies"]["torch"]
    assert table_below(SUPPORT, "torch").rows[0][0] == f"{torch.removeprefix('torch>=')} and later"


def test_the_support_matrix_has_the_capabilities_of_the_service() -> None:
    text = (ROOT / "systemd/hive-qos.service").read_text(encoding="utf-8")
    found = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)
    assert found is not None
    assert [row[0] for row in table_below(SUPPORT, "Capabilities").rows] == found[1].split()


@pytest.mark.parametrize(
    ("heading", "variable", "script"), [("Kernels", "KERNELS", "kernels"), ("Python", "PYTHONS", "pythons")]
)
def test_the_suites_of_the_support_matrix_are_those_that_the_scripts_take_by_themselves(
    heading: str, variable: str, script: str
) -> None:
    text = (ROOT / f"tools/{script}.sh").read_text(encoding="utf-8")
    found = re.search(r"^\(\(\$#\)\) \|\| set -- (.*)$", text, re.MULTILINE)
    assert found is not None
    commands = " ".join(row[2] for row in table_below(SUPPORT, heading).rows)
    assert set(found[1].split()) <= set(re.findall(rf"{variable}=(\S+)", commands))


def test_the_texts_that_troubleshooting_quotes_are_the_codes_own() -> None:
    """`…` stands for what differs from host to host."""
    texts = [
        node.value
        for folder in ("broker", "shaping", "hive_qos")
        for source in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    page = (DOCS / "operate/troubleshooting.md").read_text(encoding="utf-8")
    first_cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    quoted = [
        text for cell in first_cells for text in re.findall(r"`([^`]* [^`]*)`", cell) if "hive-qos run" not in text
    ]
    pieces = [piece.strip("', ") for text in quoted for piece in re.split(r"…|eth0|'hive-qos'|group hive-qos", text)]
    missing = [piece for piece in pieces if len(piece) > 5 and not any(piece in text for text in texts)]
    assert len(pieces) > 12
    assert missing == []
