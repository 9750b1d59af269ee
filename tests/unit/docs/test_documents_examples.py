"""Every example of the documents is run, or parsed by the program that would read it.

TOML goes through the broker's own reader, JSON is parsed, Python is compiled, and each command of a shell fence has to
be one that exists: `hive-qos` commands through its command line, `make` targets through the Makefile. What is more than
that is named in `RUN_BY`, with the test that runs it. A fence that nothing covers fails.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import ROOT, SHELLS, Fence, commands_of, current_pages, fences_of

from broker.cli.app import app
from broker.policy.toml import load

SHOWN = {"text", "ini", "mermaid"}
"""Languages of blocks that show output, a unit file or a drawing: nobody types them."""
PROGRAMS = "tests/loopback/docs/test_documents_programs.py"
RUN_BY = {
    ("README.md", "import torch.distributed as dist"): (
        "tests/loopback/integrations/test_torch_torchrun.py",
        "test_torchrun_with_hive_trains_to_the_weights_that_gloo_trains_to",
    ),
    ("docs/train.md", "import torch"): (PROGRAMS, "test_the_training_script_of_the_page_runs_under_torchrun"),
    ("docs/train.md", "try:"): (PROGRAMS, "test_the_error_handler_of_the_page_saves_when_a_rank_is_lost"),
    ("docs/train.md", "from integrations.volatile import DiLoCo, torch_register"): (
        PROGRAMS,
        "test_the_loop_over_members_that_come_and_go_meets_after_a_hundred_steps",
    ),
    ("docs/store.md", "from broker.client import Session"): (
        PROGRAMS,
        "test_the_session_of_the_storage_page_registers_and_declares",
    ),
    ("docs/reference/broker-api.md", "from broker.client import Session"): (
        "tests/loopback/docs/test_documents_broker_api.py",
        "test_the_session_of_the_reference_does_what_the_page_says",
    ),
    ("docs/reference/transport.md", "import numpy as np"): (
        PROGRAMS,
        "test_the_group_of_the_reference_takes_the_mean_on_every_rank",
    ),
    (
        "docs/reference/transport.md",
        "async with await transport.Group.connect_async(rendezvous, rank=rank, world_size=4) as group:",
    ): (PROGRAMS, "test_the_group_of_the_reference_works_with_asyncio"),
}
"""Python fences by page and first line: the file and the name of the test that runs what they show."""
SYSTEM = {
    "pip", "python3", "torchrun", "ln", "mkdir", "cat", "cp", "mv", "rm", "install", "chmod", "test", "openssl", "curl",
    "apt-get", "usermod", "systemctl", "systemd-sysusers", "systemd-tmpfiles", "systemd-analyze", "systemd-cgls",
    "systemd-run", "journalctl", "ip", "tc", "ss", "nft", "ethtool", "ping", "iperf3", "git", "docker", "ssh", "scp",
    "rsync", "sysctl", "helm", "grep", "head", "sed", "watch", "jq", "nc", "export", "cd",
}  # fmt: skip
"""Programs of the system. What a command of theirs does to hive-qos is for the test of its page to claim."""
PREAMBLE = 'version = 1\n[[interface]]\nname = "eth0"\n'
NETWORKS = {"docs/reference/lab.md", "docs/reference/simulator.md"}
"""Pages whose TOML describes a network; test_documents_broker.py has it read by the lab and by the simulator."""

FENCES = [pytest.param(fence, id=fence.where) for page in current_pages() for fence in fences_of(page)]


def in_language(*languages: str) -> list[Any]:
    return [one for one in FENCES if one.values[0].language in languages]


@pytest.mark.parametrize("fence", FENCES)
def test_every_fence_is_of_a_kind_that_a_test_covers(fence: Fence) -> None:
    assert fence.language in {"python", "toml", "json", *SHELLS, *SHOWN}, f"{fence.where}: {fence.language!r}"


@pytest.mark.parametrize("fence", [one for one in in_language("toml") if one.values[0].page not in NETWORKS])
def test_every_configuration_is_one_that_the_broker_takes(fence: Fence) -> None:
    text = fence.text
    if not re.search(r"^version *=", text, re.MULTILINE):
        text = f"{PREAMBLE if '[[interface]]' not in text else 'version = 1'}\n{text}"
    load(text)


@pytest.mark.parametrize("fence", in_language("json"))
def test_every_json_example_is_json(fence: Fence) -> None:
    try:
        json.loads(fence.text)
    except ValueError:
        for line in fence.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("fence", in_language("python"))
def test_every_python_example_is_run_by_a_named_test(fence: Fence) -> None:
    compile(fence.text, fence.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    key = (fence.page, fence.text.splitlines()[0])
    assert key in RUN_BY, f"{fence.where}: no test runs this; write one, and name it in RUN_BY"


def test_every_test_that_runs_an_example_is_there() -> None:
    for page, first in RUN_BY:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.search(rf"^ *{re.escape(first)}$", text, re.MULTILINE), f"{page} has no example {first!r} any more"
    for file, name in RUN_BY.values():
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


@pytest.mark.parametrize("fence", in_language(*SHELLS))
def test_every_command_is_one_that_exists(fence: Fence) -> None:
    commands = commands_of(fence)
    assert commands, f"{fence.where} has no command; is it output (`text`), or are the prompts missing?"
    for command in commands:
        check(command, where=fence.where)


def check(command: list[str], *, where: str) -> None:
    """Hold one command against the program that would read it."""
    program, *arguments = command
    name = Path(program).name
    if name == "hive-qos":
        taken(arguments, where=where)
    elif name == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (one for one in arguments if "=" not in one):
            assert re.search(rf"^(?:[\w-]+ )*{re.escape(target)}(?: [\w-]+)*:", makefile, re.MULTILINE), (
                f"{where}: make {target}"
            )
    elif name.startswith("python") and arguments[:1] == ["-m"]:
        assert importlib.util.find_spec(arguments[1]) is not None, f"{where}: no module {arguments[1]}"
    elif name.startswith("python") and arguments and arguments[0].startswith("examples/"):
        assert (ROOT / arguments[0]).is_file(), f"{where}: no {arguments[0]}"
    else:
        assert name in SYSTEM, f"{where}: {name} is no program that a test knows"


def taken(arguments: list[str], *, where: str) -> None:
    """Have the command line read the words. Its commands do nothing meanwhile."""
    command = typer.main.get_command(app)
    disarm(command)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, prog_name="hive-qos")
    assert ended.value.code == 0, f"{where}: the command line refuses `hive-qos {' '.join(arguments)}`"


def disarm(command: Any) -> None:
    """Take from a command and all below it what they do; typer's groups have `commands`, whatever click it brings."""
    command.callback = None
    for below in getattr(command, "commands", {}).values():
        disarm(below)


@pytest.mark.parametrize("words", ["nosuch", "status --nosuch", "run -- true", "apply --confirm-within"])
def test_a_command_that_does_not_exist_would_be_noticed(words: str) -> None:
    with pytest.raises(AssertionError, match="the command line refuses"):
        taken(words.split(), where="here")
