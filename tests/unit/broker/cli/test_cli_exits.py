"""The command line without a broker: exit codes, one line on stderr, and what each command says of itself."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.commands import SERVICES
from broker.cli.configuration import state_directory
from broker.cli.exits import ExitCode, code_of, guarded
from broker.policy.toml import ConfigurationErrors
from broker.policy.types import DaemonPolicy
from hive_qos import errors
from tools.docs_tables import ROOT

RUN = CliRunner()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConfigurationError("k", 1, "r"), 3),
        (ConfigurationErrors([errors.ConfigurationError("k", 1, "r")]), 3),
        (errors.BrokerUnavailableError("x"), 4),
        (errors.BrokerRejectedError("x"), 5),
        (errors.PrivilegeError("x"), 6),
        (errors.KernelRejectedError("x", errno_value=1), 7),
        (errors.ReadBackError("x", wanted=1, found=2), 7),
        (errors.PeerError("p", "r"), 8),
        (errors.HiveError("x"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: errors.HiveError, expected: int) -> None:
    assert code_of(error) == expected


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(KeyboardInterrupt(), 130), (errors.BrokerUnavailableError("gone"), 4), (PermissionError(13, "denied"), 6)],
)
def test_what_a_command_raises_becomes_an_exit_code_and_one_line(
    raised: BaseException, expected: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIVE_DEBUG", raising=False)

    @guarded
    def command() -> None:
        raise raised

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == expected
    assert len(capsys.readouterr().err.splitlines()) == (0 if expected == 130 else 1)


@pytest.mark.parametrize(("service", "expected"), [(False, ExitCode.OK), (True, ExitCode.SYSTEM)])
def test_a_broken_pipe_is_the_end_of_a_reader_but_no_good_end_of_a_service(
    service: bool, expected: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIVE_DEBUG", raising=False)
    monkeypatch.setattr("broker.cli.exits._drop_output", lambda: None)

    def command() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(typer.Exit) as ended:
        guarded(command, service=service)()
    assert ended.value.exit_code == expected


def test_every_command_that_a_unit_or_the_chart_starts_again_is_a_service() -> None:
    units = [path.read_text() for path in (ROOT / "systemd").glob("*.service")]
    kept = [re.findall(r"^ExecStart=\S+/hive-qos (\S+)", text, re.MULTILINE) for text in units if "Restart=" in text]
    assert {name for names in kept for name in names} | {"pods"} == set(SERVICES)


def test_debug_shows_where_an_error_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_DEBUG", "1")

    @guarded
    def command() -> None:
        raise errors.BrokerUnavailableError("gone")

    with pytest.raises(errors.BrokerUnavailableError):
        command()


@pytest.mark.parametrize(
    ("argv", "expected", "says"),
    [
        (["--version"], 0, "hive-qos "),
        (["nosuch"], 2, "No such command"),
        (["run", "--class", "turbo", "--", "true"], 2, "turbo"),
        (["run", "--", "true"], 2, "--class"),
        (["status", "--socket", "/nonexistent/broker.sock"], 4, "start it: systemctl start hive-qos"),
        (
            ["run", "--class", "storage", "--socket", "/nonexistent/s", "--", "true"],
            4,
            "start it: systemctl start hive-qos",
        ),
        (["broker", "--config", "/nonexistent.toml"], 3, "cannot be read"),
        (["replay", "/nonexistent.jsonl"], 3, "cannot be read"),
        (["ca", "show", "/nonexistent.crt"], 3, "cannot be read"),
        (["ca", "issue", "n", "--directory", "/nonexistent"], 3, "ca init"),
    ],
)
def test_commands_fail_by_kind(argv: list[str], expected: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside a broker's cgroups `run` would do without its socket, and become `true`: the end of all tests, with code 0.
    monkeypatch.setattr("broker.enforce.cgroups.mount_point", lambda: None)
    result = RUN.invoke(app, argv)
    assert result.exit_code == expected, result.output
    assert says in result.output
    assert "Traceback" not in result.output


def test_every_help_page_has_the_exit_codes_and_every_command_an_example() -> None:
    for command in (
        "init",
        "check",
        "plan",
        "apply",
        "set",
        "unset",
        "pause",
        "resume",
        "broker",
        "status",
        "run",
        "clear",
        "replay",
        "doctor",
    ):
        text = RUN.invoke(app, [command, "--help"]).output
        assert "Exit codes:" in text
        assert f"hive-qos {command}" in text
        assert "Example" in text


@pytest.mark.parametrize("seconds", ["0s", "61m", "nan", "soon"])
def test_a_trial_of_no_possible_length_is_refused_before_anything_is_done(seconds: str, tmp_path: Path) -> None:
    result = RUN.invoke(app, ["apply", "--yes", "--confirm-within", seconds, "--socket", str(tmp_path / "none")])
    assert result.exit_code == ExitCode.CONFIGURATION, result.output


def test_check_names_every_mistake_with_key_and_value(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'version = 1\n[[interface]]\nname = "eth0"\negress = "0 Mbit/s"\n[class.storage]\nguarante = "5 %"\n'
    )
    result = RUN.invoke(app, ["check", str(path)])
    assert result.exit_code == ExitCode.CONFIGURATION
    assert 'interface[0].egress = "0 Mbit/s"' in result.output
    assert "did you mean `guarantee`?" in result.output
    path.write_text('version = 1\n[[interface]]\nname = "eth0"\n')
    assert RUN.invoke(app, ["check", str(path)]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version = 1\n[daemon]\nstate_dir = '/var/lib/mine'\n", "/var/lib/mine"),  # no interface
        ("version = 1\n[daemon]\nstate_dir = 7\n", DaemonPolicy().state_dir),
        ("version = = 1\n", DaemonPolicy().state_dir),
        ("x = " + "[" * 3000 + "]" * 3000 + "\n", DaemonPolicy().state_dir),
    ],
)
def test_who_broke_the_configuration_can_clear_and_is_told_where_it_looks(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    assert state_directory(path, warn=True) == Path(expected)
    (line,) = capsys.readouterr().err.splitlines()
    assert "has a mistake" in line
    assert line.endswith(expected)


def test_a_ca_issues_certificates_that_can_be_shown(tmp_path: Path) -> None:
    ca = ["--directory", str(tmp_path / "ca")]
    assert RUN.invoke(app, ["ca", "init", *ca]).exit_code == 0
    assert RUN.invoke(app, ["ca", "init", *ca]).exit_code == ExitCode.CONFIGURATION
    issued = RUN.invoke(
        app,
        ["ca", "issue", "node-1", *ca, "--address", "10.0.0.1", "--job", "a", "--out", str(tmp_path / "out"), "--json"],
    )
    files = json.loads(issued.output)
    assert Path(files["key"]).stat().st_mode & 0o077 == 0
    node, authority = json.loads(RUN.invoke(app, ["ca", "show", files["certificate"], "--json"]).output)
    assert node["subject"] == "CN=node-1"
    assert node["issuer"] == authority["subject"]
    assert node["valid_now"]
    assert {"10.0.0.1", "urn:hive-qos:job:a"} <= set(node["names"])
    assert RUN.invoke(app, ["ca", "revoke", "node-2", *ca]).exit_code == ExitCode.CONFIGURATION
    revoked = RUN.invoke(app, ["ca", "revoke", "node-1", *ca, "--json"])
    assert json.loads(revoked.output) == {"list": str(tmp_path / "ca" / "ca.crl")}


def test_a_renewed_certificate_keeps_role_and_addresses_and_replaces_the_pair(tmp_path: Path) -> None:
    ca, out = ["--directory", str(tmp_path / "ca")], ["--out", str(tmp_path)]
    RUN.invoke(app, ["ca", "init", *ca])
    refused = RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--renew"])
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "b1.crt': cannot be read: No such file" in refused.output
    addresses = ["--address", "10.0.0.1", "--address", "fd00::1", "--address", "b1.example"]
    assert RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--role", "broker", *addresses]).exit_code == 0
    again = RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--role", "broker", *addresses])
    assert again.exit_code == ExitCode.CONFIGURATION
    assert "--renew" in again.output
    before = json.loads(RUN.invoke(app, ["ca", "show", str(tmp_path / "b1.crt"), "--json"]).output)[0]
    key = (tmp_path / "b1.key").read_bytes()
    renewed = RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--renew"])
    assert renewed.exit_code == 0, renewed.output
    after = json.loads(RUN.invoke(app, ["ca", "show", str(tmp_path / "b1.crt"), "--json"]).output)[0]
    assert sorted(after["names"]) == sorted(before["names"])
    assert after["sha256"] != before["sha256"]
    assert (tmp_path / "b1.key").read_bytes() != key
    assert (tmp_path / "b1.key").stat().st_mode & 0o077 == 0
    other = RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--renew", "--address", "10.0.0.2"])
    assert other.exit_code == 0
    assert "10.0.0.2" in RUN.invoke(app, ["ca", "show", str(tmp_path / "b1.crt")]).output


def test_a_brokers_certificate_needs_an_address(tmp_path: Path) -> None:
    ca = ["--directory", str(tmp_path / "ca")]
    RUN.invoke(app, ["ca", "init", *ca])
    refused = RUN.invoke(app, ["ca", "issue", "b1", *ca, "--role", "broker", "--out", str(tmp_path)])
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "--address" in refused.output
    assert not (tmp_path / "b1.key").exists()


def test_check_looks_at_the_certificates_that_peers_names(tmp_path: Path) -> None:
    ca, out = ["--directory", str(tmp_path / "ca")], ["--out", str(tmp_path)]
    RUN.invoke(app, ["ca", "init", *ca])
    files = "\n".join(f'{key} = "{tmp_path}/{name}"' for key, name in (
        ("ca", "ca/ca.crt"), ("certificate", "b1.crt"), ("key", "b1.key")
    ))  # fmt: skip
    path = tmp_path / "broker.toml"
    path.write_text(f'version = 1\n[[interface]]\nname = "lo"\n[peers]\n{files}\n')
    check = ["check", str(path)]
    missing = RUN.invoke(app, check)
    assert missing.exit_code == ExitCode.CONFIGURATION
    assert "peers.certificate" in missing.output
    RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--role", "broker", "--address", "10.0.0.1", "--days", "20"])
    found = RUN.invoke(app, check)
    assert found.exit_code == 0, found.output
    assert "b1.crt: fine; for 10.0.0.1, good until" in found.stdout
    assert "renew it" in found.stderr
    RUN.invoke(app, ["ca", "issue", "b1", *ca, *out, "--renew"])
    assert RUN.invoke(app, check).stderr == ""
    (tmp_path / "b1.key").chmod(0o644)
    assert "chmod 600" in RUN.invoke(app, check).output


def test_a_recording_that_came_out_otherwise_is_told_by_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    for text in ("not a recording\n", ""):
        path.write_text(text)
        assert RUN.invoke(app, ["replay", str(path)]).exit_code == ExitCode.CONFIGURATION


def test_check_warns_of_interfaces_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('version = 1\n[[interface]]\nname = "lo"\n[[interface]]\nname = "nosuch0"\n')
    result = RUN.invoke(app, ["check", str(path)])
    assert result.exit_code == ExitCode.OK
    assert "no interface nosuch0 in this network namespace (there: " in result.stderr
    assert "it is shaped when it appears" in result.stderr
    assert "interface lo" not in result.stderr
    path.write_text('version = 1\n[[interface]]\nname = "nosuch0"\n')
    result = RUN.invoke(app, ["check", str(path)])
    assert "the broker does not start" in result.stderr


@pytest.mark.parametrize("text", [f"x = {'[' * 3000}{']' * 3000}", f"version = {'9' * 5000}"])
def test_a_file_that_no_reader_can_take_is_a_mistake_in_the_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    result = RUN.invoke(app, ["check", str(path)])
    assert result.exit_code == ExitCode.CONFIGURATION, result.output
    assert "not TOML" in result.output


def test_a_watched_status_that_goes_into_a_pipe_is_one_table_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def status(path: str | None) -> dict[str, Any]:
        asked.append(path)
        return {"host": "h", "interfaces": [{"name": f"eth{len(asked)}", "classes": []}], "alarms": []}

    def sleep(duration_s: float) -> None:
        if len(asked) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.show.status_command.client.status", status)
    monkeypatch.setattr("broker.cli.show.status_command.time.sleep", sleep)
    result = RUN.invoke(app, ["status", "--watch"])
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "eth1" in result.stdout
    assert "eth2" in result.stdout


def test_who_starts_many_programs_at_once_waits_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = ["too-many", "too-many", "", "not-allowed"]

    def request(message: object, *, socket_path: str | None) -> None:
        refusal = refusals.pop(0)
        if refusal:
            raise errors.BrokerRejectedError(f"{refusal}: no", refusal=refusal)

    monkeypatch.setattr("broker.cli.run_command.client.request", request)
    monkeypatch.setattr("broker.cli.run_command._moved_itself", lambda traffic_class: False)
    monkeypatch.setattr("broker.cli.run_command.time.sleep", lambda seconds: None)
    become = ["run", "--class", "storage", "--", "true"]
    monkeypatch.setattr("broker.cli.run_command._become", lambda command: None)
    assert RUN.invoke(app, become).exit_code == 0
    assert "not-allowed" in RUN.invoke(app, become).output
    assert refusals == []


def test_no_command_takes_the_place_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.cli.run_command._enter", lambda traffic_class, path: None)
    monkeypatch.setattr("broker.cli.run_command.signal.signal", lambda *_: None)  # or a broken pipe would end the tests
    result = RUN.invoke(app, ["run", "--class", "storage", "--", "true"])
    assert isinstance(result.exception, AssertionError)
    assert "would have become" in str(result.exception)


def test_a_file_that_is_no_toml_is_called_by_its_name_and_a_missing_key_has_no_value(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("version = [\n")
    broken = RUN.invoke(app, ["check", str(path)])
    assert f"{path}: not TOML" in broken.output
    path.write_text("version = 1\n")
    missing = RUN.invoke(app, ["check", str(path)])
    assert f"{path}: interface = 0: name 1 to" in missing.output
    assert "None" not in missing.output
