"""Every command of `hive-qos`, with the examples of its own help, wherever something is wrong.

Commands come from the command line itself: a new one is tried without a line here. What is judged holds of each: an
exit code of the table, a line that says what to do, no traceback, nothing of what a stranger chose on the terminal,
nothing left behind.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from patience import LIMIT_S

from broker.cli.app import app
from broker.cli.exits import ExitCode
from tools.lab import Lab

SCENE = Path(__file__).with_name("command_scene.py")
COLUMNS = 40
HOSTILE = "\x1b[31mred\x1b]0;title\x07\nline"
CONDITIONS = (
    "nothing there", "without rights", "configuration that is no TOML", "configuration with escapes", "full disk",
    "read-only", "output on a full disk", "closed output", "broker",
)  # fmt: skip
PROGRAMS_OWN = {126, 127}
"""`run` gives the exit code of the program; what a shell has where there is none, as here."""
WHAT_TO_DO = re.compile(
    r"\b(start|run|write|use|name|correct|free|install|make|stop|renew|sudo|see|load|need[s]?|root|"
    r"cannot be (read|made)|not TOML|known here|one of|replaces|connect|lower|nothing is|"
    r"no such|Read-only|Permission denied)\b"
)
"""What a line on stderr has at least one of: something to do, or the plain reason with the file's name before it."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(_commands(typer.main.get_command(app)))


def examples_of(path: tuple[str, ...], home: str = "/mnt/home") -> list[list[str]]:
    """The command lines of ours among the examples of a command's help, without what a shell does with them."""
    found: list[list[str]] = []
    for line in (COMMANDS[path].help or "").partition("Example")[2].splitlines()[1:]:
        tokens = shlex.shlex(line.replace("~", home), posix=True, punctuation_chars="|>&;")
        tokens.whitespace_split = True
        parts: list[list[str]] = [[]]
        for token in tokens:
            parts = [*parts, []] if set(token) <= set("|>&;") else [*parts[:-1], [*parts[-1], token]]
        lines = [words[1:] if words[:1] == ["sudo"] else words for words in parts]
        found += [words[1:] for words in lines if words[: 1 + len(path)] == ["hive-qos", *path]]
    return found


EXAMPLES = [argv for path in COMMANDS for argv in examples_of(path)]
FIRST_EXAMPLES = [examples_of(path)[0] for path in COMMANDS if examples_of(path)]
HOSTILE_LINES = [[*path, HOSTILE] for path in COMMANDS] + [
    ["run", "--class", "storage", "--optional", "--", HOSTILE],
    ["run", "--class", HOSTILE, "--", "true"],
    ["status", "--socket", HOSTILE],
    ["replay", f"/{HOSTILE}"],
    [HOSTILE],
    [f"--{HOSTILE}"],
]


@dataclass(frozen=True)
class Scene:
    """The program in which commands run, in a host of a lab."""

    process: subprocess.Popen[bytes]

    def results(self, condition: str, cases: list[list[str]]) -> list[dict[str, Any]]:
        """What became of each case, and at the end of the kernel."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"condition": condition, "cases": cases, "limit_s": LIMIT_S})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        found = []
        while result := json.loads(self.process.stdout.readline() or b"{}"):
            found.append(result)
        assert len(found) == len(cases) + 1, found[-1:]
        return found


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Lab("commands") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        lab["a"].run(["ip", "route", "add", "default", "via", lab["b"].address])
        apart = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with lab["a"].popen(
            [*apart, sys.executable, str(SCENE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=SCENE.parents[3],
            env={"PYTHONPATH": "."},
        ) as process:
            yield Scene(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0


def offences(result: dict[str, Any]) -> Iterator[str]:
    """What is wrong with what became of a command."""
    argv, status, error = result["argv"], result["status"], result["err"]
    lines = error.splitlines()
    ours = [line for line in lines if line.startswith("hive-qos: ")]
    if status is None:
        yield "did not end, also not after SIGINT"
        return
    if status not in set(ExitCode) and not (argv[0] == "run" and status in PROGRAMS_OWN):
        yield f"exit code {status} is not in the table"
    if status == ExitCode.BUG:
        yield "ends as a bug of ours"
    if argv in EXAMPLES and re.search("No such (option|command)|Missing|unexpected extra", error):
        yield "an example of its own help is a mistake of usage"
    if result["interrupted"] and status not in (ExitCode.INTERRUPTED, ExitCode.OK):
        yield "did not end with 130 at SIGINT"
    for word in ("Traceback", "Exception ignored", "KeyboardInterrupt"):
        if word in error:
            yield f"{word} on stderr"
    if found := CONTROL.search(result["out"] + error):
        yield f"{found[0]!r} is printed as it is"
    if argv[0] == "check":  # what it finds is what it was asked for
        error = result["out"] + error
        ours = lines = error.splitlines()
    if ExitCode.CONFIGURATION <= status <= ExitCode.SYSTEM and status != ExitCode.FOUND:
        if not ours or (len(lines) > 3 and argv[0] != "broker"):
            yield "no one clear line on stderr"
        elif not WHAT_TO_DO.search(error):
            yield "the line does not say what to do"
    if (
        status != 0
        and result["condition"] != "output on a full disk"
        and argv[0] != "broker"
        and not result["interrupted"]
        and result["written"]
    ):
        yield f"failed, and has left or changed {result['written']}"
    if half := [name for name in result["written"] if name.endswith((".new", ".tmp"))]:
        yield f"left {half}"
    if result["left"]:  # such as a watchdog
        yield f"left processes {result['left']}"
    if too_long := _too_long(argv, result["out"]):
        yield f"a table wider than {COLUMNS} columns: {too_long!r}"


def _too_long(argv: list[str], text: str) -> str | None:
    """A line of a table (what rich draws: status, report and explain) that a narrow terminal would break."""
    if "--json" in argv or "--csv" in argv or argv[0] not in ("status", "report", "explain-collective"):
        return None
    return next((line for line in text.splitlines() if len(line) > COLUMNS), None)


def judged(results: list[dict[str, Any]]) -> None:
    before, after = results[-1]["kernel"]
    left = results[-1]["left"]
    found = [
        f"{shlex.join(result['argv'])}: {what}\n    {result['status']} {result['err'][-400:]!r}"
        for result in results[:-1]
        for what in offences(result)
    ]
    assert not found, "\n".join(found)
    assert left == [], "processes are left"
    assert before == after, "something is left in the kernel"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_example_of_every_command_ends_well_or_says_what_to_do(scene: Scene, condition: str) -> None:
    judged(scene.results(condition, EXAMPLES if condition == "broker" else FIRST_EXAMPLES))


def test_ctrl_c_at_any_moment_of_the_start_ends_a_command_with_130_and_without_a_word(scene: Scene) -> None:
    starts = [examples_of(path)[-1] for path in COMMANDS if examples_of(path)]
    results = scene.results("interrupted", [[str(seed), *argv] for seed, argv in enumerate(starts)])
    for result in results[:-1]:
        result["argv"] = result["argv"][1:]
    judged(results)
    assert any(result["status"] == ExitCode.INTERRUPTED for result in results[:-1])


def test_what_a_stranger_put_on_the_command_line_is_not_sent_to_the_terminal(scene: Scene) -> None:
    judged(scene.results("nothing there", HOSTILE_LINES))


def test_every_command_has_an_example_that_is_tried() -> None:
    assert [path for path in COMMANDS if not examples_of(path)] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": 1}, "bug"),
        ({"status": 77}, "not in the table"),
        ({"status": None}, "did not end"),
        ({"status": 4}, "no one clear line"),
        ({"status": 4, "err": "hive-qos: no\n"}, "what to do"),
        ({"err": "Traceback (most recent call last):\n"}, "Traceback"),
        ({"out": "\x1b[31m"}, "printed as it is"),
        ({"status": 10, "err": "hive-qos: free it\n", "written": ["/mnt/home/half"]}, "left or changed"),
        ({"left": ["watchdog"]}, "left processes"),
        ({"out": "x" * 41}, "wider than"),
    ],
)
def test_the_judge_sees_each_offence(change: dict[str, Any], says: str) -> None:
    fine = {
        "condition": "",
        "argv": ["status"],
        "status": 0,
        "interrupted": False,
        "out": "",
        "err": "",
        "written": [],
        "left": [],
    }
    assert list(offences(fine)) == []
    assert any(says in what for what in offences({**fine, **change}))
