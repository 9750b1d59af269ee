"""What a user's tools find in the installed package: types, the Pythons that it is for, and the command as a module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from hive_qos import __version__

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'hive-qos'; "


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_package_that_is_installed_says_that_it_has_types():
    names = [pattern.removesuffix("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
    assert [name for name in names if not (ROOT / name / "py.typed").is_file()] == []
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]


def test_the_package_says_that_it_is_for_the_python_that_tests_it():
    this = f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}"
    assert this in PROJECT["project"]["classifiers"]


def test_the_command_runs_as_a_module_too():
    done = run("-m", "hive_qos", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hive-qos {__version__}\n", "")


def test_command_line_and_transport_work_without_torch():
    code = f"{WITHOUT_TORCH}import transport; transport.Group; from broker.cli import main; main()"
    done = run("-c", code, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hive-qos ")
