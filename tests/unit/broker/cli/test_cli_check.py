"""`hive-qos check`: each mistake with its line, what an editor can jump to, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.cli.app import app

RUN = CliRunner()
GOOD = 'version = 1\n[[interface]]\nname = "lo"\negress = "40 Mbit/s"\n'


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "broker.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_good_file_is_called_fine(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["check", str(written(tmp_path, GOOD))])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/broker.toml: fine; shapes lo\n")


def test_a_mistake_is_named_with_file_line_key_and_what_to_write(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD + '\n[class.storage]\nguarante = "30 %"\nfloor = "2"\n')
    result = RUN.invoke(app, ["check", str(file)])
    assert result.exit_code == 3
    first, source, second, *_, count = result.stdout.splitlines()
    assert first == f'{file}:7: class.storage.guarante = "30 %": unknown key; did you mean `guarantee`?'
    assert source == '    7 | guarante = "30 %"'
    assert second.startswith(f"{file}:8: class.storage.floor")
    assert count == "2 mistakes"


def test_a_mistake_of_several_sections_stands_at_the_first_of_them(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD + '[class.storage]\nguarantee = "50 %"\n')
    result = RUN.invoke(app, ["check", "--json", str(file)])
    (mistake,) = json.loads(result.stdout)["mistakes"]
    assert (mistake["line"], mistake["key"], mistake["value"]) == (6, "class.*.guarantee", '"122 %"')


def test_what_is_no_toml_has_the_line_of_the_parser(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["check", str(written(tmp_path, "version = 1\n[[interface]\n"))])
    assert result.exit_code == 3
    assert result.stdout.startswith(f"{tmp_path}/broker.toml:2: not TOML: ")


@pytest.mark.parametrize("text", ["", "\x00", "version = 1\nversion = 1", "a = " + "[" * 5000])
def test_a_corrupt_file_is_answered_with_its_mistakes(tmp_path: Path, text: str) -> None:
    result = RUN.invoke(app, ["check", str(written(tmp_path, text))])
    assert result.exit_code == 3
    assert "mistake" in result.stdout


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["check", str(tmp_path / "none.toml")])
    assert result.exit_code == 3
    assert "No such file" in result.stderr


def test_escapes_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["check", str(written(tmp_path, GOOD + '"\\u001b[31m" = "\\u001b]0;x\\u0007"\n'))])
    assert result.exit_code == 3
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


def test_json_of_a_good_file_has_its_interfaces_and_warnings(tmp_path: Path) -> None:
    text = GOOD + '[[interface]]\nname = "nosuch0"\n'
    found = json.loads(RUN.invoke(app, ["check", "--json", str(written(tmp_path, text))]).stdout)
    assert found["mistakes"] == []
    assert found["interfaces"] == ["lo", "nosuch0"]
    assert "no interface nosuch0" in found["warnings"][0]
