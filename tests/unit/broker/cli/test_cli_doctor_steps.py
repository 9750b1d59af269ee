"""The doctor has a next step for all that is not well, and checks what the configuration asks of the host."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from broker.cli.alarm_advice import ALARM_ADVICE
from broker.cli.commands import COMMANDS
from broker.cli.doctor import configured, doctor_command
from broker.cli.doctor.configured import configuration
from broker.cli.doctor.finding import Finding
from broker.client import http
from hive_qos.errors import BrokerRejectedError

FOLDER = Path(configured.__file__).parent
HEAD = 'version = 1\n[[interface]]\nname = "lo"\negress = "40 Mbit/s"\n'


def findings_in_code() -> list[tuple[str, ast.Call]]:
    calls = []
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                calls.append((f"{path.name}:{node.lineno}", node))
    return calls


def test_a_finding_that_is_not_good_has_a_next_step() -> None:
    calls = findings_in_code()
    assert len(calls) > 30
    for where, call in calls:
        verdict = call.args[1]
        if isinstance(verdict, ast.Constant) and verdict.value != "good":
            assert len(call.args) >= 4, f"{where}: what is to be done?"


@pytest.mark.parametrize("verdict", ["note", "bad"])
def test_a_finding_without_a_next_step_cannot_be_made(verdict: str) -> None:
    with pytest.raises(ValueError, match="no next step"):
        Finding("x", verdict, "text")  # type: ignore[arg-type]


def test_a_command_of_ours_that_an_alarm_names_is_one_that_exists() -> None:
    commands = [advice.command for advice in ALARM_ADVICE.values() if advice.command]
    assert len(commands) > 15
    for command in commands:
        words = command.format(subject="eth0").split()
        assert words[0] != "hive-qos" or words[1] in COMMANDS, command


def of(tmp_path: Path, text: str) -> dict[str, Finding]:
    file = tmp_path / "broker.toml"
    file.write_text(f'{text}[daemon]\nstate_dir = "{tmp_path}/state"\n', encoding="utf-8")
    return {finding.what.split(" ")[0]: finding for finding in configuration(file)}


def test_a_host_without_a_configuration_is_told_to_write_one(tmp_path: Path) -> None:
    (finding,) = configuration(tmp_path / "none.toml")
    assert (finding.verdict, finding.command) == ("note", "hive-qos init")


def test_a_good_configuration_is_called_so(tmp_path: Path) -> None:
    found = of(tmp_path, HEAD)
    assert {finding.verdict for finding in found.values()} == {"good"}
    assert found["configuration"].text == "no mistakes; shapes lo"


def test_a_mistake_is_named_with_its_line_and_the_command_that_names_all(tmp_path: Path) -> None:
    finding = of(tmp_path, HEAD + "[class.storage]\nweight = 0\n")["configuration"]
    assert finding.verdict == "bad"
    assert "1 mistake, the first on line 6: class.storage.weight" in finding.text
    assert finding.command == f"hive-qos check {tmp_path}/broker.toml"


def test_an_interface_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    finding = of(tmp_path, HEAD.replace('"lo"', '"nosuch0"'))["interface"]
    assert (finding.verdict, finding.text, finding.command) == ("note", "is not there", "ip -br link")


def test_an_interface_whose_rate_nobody_knows_is_a_note_with_the_setting(tmp_path: Path) -> None:
    finding = of(tmp_path, HEAD.replace('egress = "40 Mbit/s"\n', ""))["interface"]
    assert finding.command == 'hive-qos set interface lo egress="40 Mbit/s" --keep'


def test_a_certificate_that_cannot_be_used_is_bad(tmp_path: Path) -> None:
    paths = "".join(f'{key} = "{tmp_path}/{key}"\n' for key in ("ca", "certificate", "key"))
    assert of(tmp_path, HEAD + f"[peers]\n{paths}")["certificate"].verdict == "bad"


def test_a_disk_that_is_nearly_full_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    finding = of(tmp_path, HEAD)["state"]
    assert (finding.verdict, finding.command) == ("bad", f"df -h {tmp_path}")


@pytest.mark.parametrize("named", ["running", None])
def test_the_state_directory_is_the_running_broker_s_where_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    def fetch(target: str, *, socket_path: str | None) -> bytes:
        assert target == "/v1/policy"
        if named is None:
            raise BrokerRejectedError("not for this user")
        return json.dumps({"daemon": {"state_dir": named}}).encode()

    monkeypatch.setattr(http, "fetch", fetch)
    file = tmp_path / "broker.toml"
    file.write_text(f'{HEAD}[daemon]\nstate_dir = "/configured"\n', encoding="utf-8")
    state_dir = doctor_command._state_dir(None)
    (what,) = [one.what for one in configuration(file, state_dir=state_dir) if one.what.startswith("state ")]
    assert what == f"state directory {named or '/configured'}"


@pytest.mark.parametrize(("groups", "verdict"), [("0 10\n", "good"), ("1 0\n", "note")])
def test_echoes_need_a_range_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, verdict: str
) -> None:
    (tmp_path / "range").write_text(groups)
    monkeypatch.setattr(configured, "_PING_GROUPS", tmp_path / "range")
    assert of(tmp_path, HEAD + '[probe]\ntargets = ["192.0.2.1"]\n')["probes"].verdict == verdict
