"""Where the native engine cannot be built, its checks and tests are left out in words; in CI little may be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CARGO = 'echo "$@" >> "$(dirname "$0")/asked"'
RECENT, OLD = "echo 'rustc 1.999.0 (0123456789 2026-01-01)'", "echo 'rustc 1.63.0'"
OF_ENGINES = ("tests/lab/daemon/test_engine_marks.py", "tests/loopback/engines/test_engine_path.py")


def script(what: str, path: Path, *, cargo: str = CARGO, rustc: str = RECENT, **environment: str) -> tuple[int, str]:
    """`tools/cargo.sh` with a cargo and a rustc that are shell: its exit code, and what it says."""
    for name, does in (("cargo", cargo), ("rustc", rustc)):
        (path / name).write_text(f"#!/bin/sh\n{does}\n")
        (path / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "HIVE_NATIVE_BUILD")}
    done = subprocess.run(
        ["bash", str(ROOT / "tools/cargo.sh"), what], env=clean | {"PATH": f"{path}:{clean['PATH']}"} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def asked(path: Path) -> list[str]:
    return (path / "asked").read_text().splitlines() if (path / "asked").exists() else []


def test_a_check_looks_at_what_is_shipped_and_at_what_only_tests_and_fuzzers_have(tmp_path: Path) -> None:
    assert script("check", tmp_path, CI="1") == (0, "")
    done = [line for line in asked(tmp_path) if "--version" not in line]
    assert done == [
        "fmt --check",
        "fmt --check --manifest-path fuzz/Cargo.toml",
        "clippy --quiet --locked --lib -- -D warnings",
        "clippy --quiet --locked --all-targets --features faults,fuzzing -- -D warnings",
    ]


@pytest.mark.parametrize(("tool", "component"), [("fmt", "rustfmt"), ("clippy", "clippy")])
def test_a_cargo_without_its_checks_fails_in_ci_and_is_told_of_elsewhere(
    tmp_path: Path, tool: str, component: str
) -> None:
    without = f'[ "$1" != {tool} ] || exit 101; {CARGO}'
    code, said = script("check", tmp_path, cargo=without)
    assert (code, said) == (0, f"native engine: cargo {tool} left out: {component} is not installed\n")
    code, said = script("check", tmp_path, cargo=without, CI="1")
    assert code == 1
    assert f"{component} is not installed" in said


@pytest.mark.parametrize("what", ["check", "test"])
def test_what_cannot_be_built_or_is_not_wanted_is_left_out_also_in_ci(tmp_path: Path, what: str) -> None:
    code, said = script(what, tmp_path, rustc=OLD, CI="1")
    assert (code, said.startswith(f"native engine: {what} left out: rust 1.63.0 is older than ")) == (0, True)
    code, said = script(what, tmp_path, CI="1", HIVE_NATIVE_BUILD="off")
    assert (code, said) == (0, f"native engine: {what} left out: HIVE_NATIVE_BUILD=off\n")
    assert not asked(tmp_path)


def test_a_machine_is_able_to_build_it_where_its_rust_is_recent_and_nobody_has_said_no(tmp_path: Path) -> None:
    assert script("able", tmp_path) == (0, "")
    assert script("able", tmp_path, rustc=OLD) == (1, "")
    assert script("able", tmp_path, HIVE_NATIVE_BUILD="off") == (1, "")


def test_cases_that_ask_for_native_are_left_out_by_selection_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", "", *OF_ENGINES],
        cwd=ROOT, env=os.environ | {"HIVE_TEST_ENGINES": "aioquic"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cases = [line for line in done.stdout.splitlines() if "::" in line]
    assert {case.partition("::")[0] for case in cases} == set(OF_ENGINES), "the other engine's stay"
    assert not [case for case in cases if "native" in case.partition("[")[2]]
    assert "deselected" in done.stdout
    assert done.stdout.count("native engine: its tests were left out: ") == 1
