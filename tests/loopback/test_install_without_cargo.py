"""`pip install` where there is no cargo: a package that works, and one line at the terminal that says what it lacks."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def test_a_plain_install_says_in_one_line_that_it_is_without_native_and_works(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for part in PARTS:
        (source / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
        copy(ROOT / part, source / part)
    without = os.environ | {"PATH": "/usr/bin:/bin", "HIVE_NATIVE_BUILD": "auto"}
    assert shutil.which("cargo", path=without["PATH"]) is None, "it proves nothing here"
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    code, shown = at_a_terminal([*pip, "--target", str(target), "."], cwd=source, env=without)
    assert code == 0, shown
    lines = [line for line in re.split(r"[\r\n]+", shown) if "without" in line]
    line = "hive-qos: without the native engine (cargo is not installed); the pure-Python engine is used"
    assert lines == [line], shown
    asked = "import transport.engine as e; print(e.__file__, e.find_engine('auto').name)"
    hidden = "import sys; sys.modules['hive_qos_native'] = None; "  # this environment's own, if it has one
    done = subprocess.run(
        [sys.executable, "-c", hidden + asked], cwd=tmp_path, env=without | {"PYTHONPATH": str(target)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(target / "transport/engine/__init__.py"), "aioquic"]
