"""The fuzzers are built with the engine's crates: `make fuzz` refuses a lock file that lacks one."""

import tomllib
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"


def locked(path: str) -> set[tuple[str, str]]:
    return {(one["name"], one["version"]) for one in tomllib.loads((NATIVE / path).read_text())["package"]}


def test_the_fuzzers_lock_has_all_crates_of_the_engines() -> None:
    assert locked("Cargo.lock") - locked("fuzz/Cargo.lock") == set()
