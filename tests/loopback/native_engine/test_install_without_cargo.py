"""Installing where native cannot be built: a package that works, and one line at the terminal that says why."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("setup.py", "pyproject.toml", "README.md", "hive_qos", "transport", "native/Cargo.toml")
"""What makes a package that has an engine; the rest only takes time."""
SIT_DOWN = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"


def at_a_terminal(argv: list[str], **options: object) -> tuple[int, str]:
    """Run a program as somebody does who sits before it: its exit code, and what the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", SIT_DOWN, *argv], stdin=theirs, **options)  # type: ignore[call-overload]
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    return process.wait(), shown.decode(errors="replace")


RUST_NEEDED = re.search(r'^rust-version = "(.*)"', (ROOT / "native/Cargo.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
RECENT = f"echo 'rustc {RUST_NEEDED}.0 (0123456789 2026-01-01)'"
BREAKS = "echo '   Compiling ring v0.17.14'; echo 'error: linking with `cc` failed: exit status: 1'; exit 101"
BROKEN = {"cargo": BREAKS, "rustc": RECENT}
REASONS = {
    "no rustc": ({"cargo": BREAKS}, "rustc is not installed"),
    "an old rustc, as Debian 12 has it": (
        {"cargo": BREAKS, "rustc": "echo 'rustc 1.63.0'"},
        f"rustc 1.63.0 is older than {RUST_NEEDED}",
    ),
    "cargo fails in the middle": (BROKEN, "cargo failed: error: linking with `cc` failed: exit status: 1"),
}
"""What is found on a machine's path, as lines of shell that use nothing else, and the reason that is told."""
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
BUILD = ("setup.py", "--quiet", "build")
"""What pip has setuptools do, in a tenth of its time."""


@dataclass(frozen=True)
class Machine:
    """A copy of the sources where nothing but some programs is on the path."""

    source: Path
    environment: dict[str, str]

    def python(self, *arguments: str) -> tuple[int, list[str]]:
        """Run this Python at a terminal: its exit code, and the lines that the terminal shows."""
        code, shown = at_a_terminal([sys.executable, *arguments], cwd=self.source, env=self.environment)
        return code, re.split(r"[\r\n]+", shown)


def machine(folder: Path, programs: dict[str, str], *, wish: str = "auto") -> Machine:
    source, path = folder / "source", folder / "path"
    for part in PARTS:
        (source / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
        copy(ROOT / part, source / part)
    path.mkdir()
    for name, does in programs.items():
        (path / name).write_text(f"#!/bin/sh\n{does}\n")
        (path / name).chmod(0o755)
    return Machine(source, os.environ | {"PATH": str(path), "HIVE_NATIVE_BUILD": wish})


def without(reason: str) -> str:
    return f"hive-qos: without the native engine ({reason}); the pure-Python engine is used"


def test_a_plain_install_says_in_one_line_that_it_is_without_native_and_works(tmp_path: Path) -> None:
    target, here = tmp_path / "target", machine(tmp_path, {})
    code, shown = here.python(*PIP, "--target", str(target), ".")
    assert code == 0, shown
    assert [line for line in shown if "without" in line] == [without("cargo is not installed")], shown
    asked = "import transport.engine as e; print(e.__file__, e.find_engine('auto').name)"
    hidden = "import sys; sys.modules['hive_qos_native'] = None; "  # this environment's own, if it has one
    done = subprocess.run(
        [sys.executable, "-c", hidden + asked], cwd=tmp_path, env=here.environment | {"PYTHONPATH": str(target)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(target / "transport/engine/__init__.py"), "aioquic"]


def test_an_install_that_requires_native_fails_with_the_reason_where_it_cannot_be_built(tmp_path: Path) -> None:
    target, here = tmp_path / "target", machine(tmp_path, BROKEN, wish="required")
    code, shown = here.python(*PIP, "--target", str(target), ".")
    assert code != 0
    _, reason = REASONS["cargo fails in the middle"]
    assert any(f"hive-qos: the native engine cannot be built: {reason}" in line for line in shown), shown
    assert any("Compiling ring" in line for line in shown), "with all that cargo said"
    assert not target.exists()


@pytest.mark.parametrize("where", REASONS)
def test_a_build_without_native_gives_the_reason_and_all_the_rest(tmp_path: Path, where: str) -> None:
    programs, reason = REASONS[where]
    here = machine(tmp_path, programs)
    code, shown = here.python(*BUILD)
    assert code == 0, shown
    assert [line for line in shown if "without" in line] == [without(reason)], shown
    assert (here.source / "build/lib/transport/engine/__init__.py").is_file()


def test_a_build_that_is_to_be_without_native_does_not_ask_cargo(tmp_path: Path) -> None:
    here = machine(tmp_path, BROKEN | {"cargo": f": > {tmp_path}/asked; {BREAKS}"}, wish="off")
    code, shown = here.python(*BUILD)
    assert code == 0, shown
    assert [line for line in shown if "without" in line] == [without("HIVE_NATIVE_BUILD=off")], shown
    assert not (tmp_path / "asked").exists()
