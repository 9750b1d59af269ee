"""What a shell completes behind a command, as its completion script asks for it; and the job that `run` names."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from broker import client
from broker.cli import completion
from broker.cli.app import app
from hive_qos.errors import BrokerUnavailableError

DOCUMENT = {
    "jobs": [{"job": "llm"}, {"job": "two words"}, {"job": "red\x1b[31m"}],
    "interfaces": [{"name": "eth0"}, {"name": "eth0"}],
    "programs": [{"command": "rsync"}, {"command": None}],
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "status", lambda **_: DOCUMENT)


def completed(words: str) -> list[str]:
    """What bash would be offered for the last of these words."""
    environment = {"_HIVE_QOS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return CliRunner().invoke(app, [], env=environment, prog_name="hive-qos").stdout.split()


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("hive-qos run --class ", ["control", "compute", "storage", "other"]),
        ("hive-qos run --class s", ["storage"]),
        ("hive-qos set ", ["class", "job", "interface"]),
        ("hive-qos set class st", ["storage"]),
        ("hive-qos set job ", ["llm"]),
        ("hive-qos unset interface ", ["eth0"]),
        ("hive-qos why ", ["llm", "control", "compute", "storage", "other", "rsync"]),
        ("hive-qos why r", ["rsync"]),
    ],
)
def test_a_shell_is_offered_what_there_is_and_no_name_that_has_to_be_quoted(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


def test_without_a_broker_only_fixed_names_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(**_: Any) -> None:
        raise BrokerUnavailableError("nobody")

    monkeypatch.setattr(client, "status", unavailable)
    assert completed("hive-qos set job ") == []
    assert completion.subjects("") == list(completion.CLASSES)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from broker.cli import main; main()", "run", *words]
    environment = {**os.environ, "HIVE_BROKER": "/nowhere/session.sock"}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)


def test_a_program_gets_the_job_that_run_names() -> None:
    done = run("--class", "compute", "--job", "llm", "--optional", "--", "sh", "-c", "echo $HIVE_JOB")
    assert (done.returncode, done.stdout) == (0, "llm\n")


@pytest.mark.parametrize("words", [("storage", "llm"), ("compute", ""), ("compute", "l" * 129), ("compute", "a\nb")])
def test_a_job_that_cannot_be_is_refused_before_the_program_runs(words: tuple[str, str]) -> None:
    done = run("--class", words[0], "--job", words[1], "--optional", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--job" in done.stderr
