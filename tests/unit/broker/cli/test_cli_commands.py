"""Each command is imported alone: what a person types often has to answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker.cli.commands import COMMANDS, wanted

HEAVY = (
    "torch", "numpy", "cryptography", "aioquic", "pyroute2", "structlog", "psutil",
    "broker.daemon", "broker.law", "broker.api", "shaping", "broker.cli.doctor", "broker.cli.ca",
)  # fmt: skip
LIGHT = ("status", "why", "top", "log")


@pytest.mark.parametrize("command", LIGHT)
def test_a_command_that_only_asks_loads_nothing_of_the_daemon(command: str) -> None:
    code = (
        "import sys; from broker.cli.commands import command_line; "
        f"command_line([{command!r}]); print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_the_first_word_chooses_the_command_and_help_has_all() -> None:
    assert list(wanted(["status", "--json"])) == ["status"]
    assert list(wanted(["ca", "init"])) == ["ca"]
    assert list(wanted([])) == list(COMMANDS)
    assert list(wanted(["--help", "status"])) == list(COMMANDS)
    assert list(wanted(["nosuch"])) == list(COMMANDS)
