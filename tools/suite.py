"""Run the test suite. A few tests that fail get a second run, and the report ends with their names.

Without arguments everything that `make test` promises runs side by side: the lab's tests and those over loopback, each
in two halves, which wait for packets and timers most of their time, and beside them, at the lowest priority, what
computes: checks, the crate's tests and the unit tests. One after the other they take twice as long on two cores. What
each says is printed when it has ended. With arguments pytest alone runs, with these.

A test can be broken by a machine that stands still for seconds, whatever it waits for. At most `SECOND_RUNS_MAX` may
fail and still be asked again when all else has ended, each in a process of its own, where its fixtures are made anew;
whatever fails again, and everything else, fails the run. What needed a second run is printed and kept over all runs
(`tools/nightly/unstable.py`): `make nightly` fails where a name comes back.

    python -m tools.suite [PYTEST ARGUMENT...]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.nightly import unstable

SECOND_RUNS_MAX = 8
LAB, LOOPBACK, UNIT = "tests/lab/", "tests/loopback/", "tests/unit/"
DAEMON = LAB + "daemon/"
"""Half of the seconds in the lab."""
GROUPS = (LOOPBACK + "groups/", LOOPBACK + "integrations/")
"""Half of the seconds over loopback."""
REAL_TIME = {
    DAEMON: [DAEMON],
    LAB: [LAB, f"--ignore={DAEMON}"],
    LOOPBACK: [LOOPBACK, *(f"--ignore={folder}" for folder in GROUPS)],
    " ".join(GROUPS): list(GROUPS),
}
CHECKS = ["make", "--no-print-directory", "--keep-going", "check", "crate"]
"""Targets of the Makefile, one after the other; `--keep-going` tells all that is wrong."""
LOWEST_PRIORITY = ["nice", "-n", "19"]
OK, FAILED = 0, 1
"""pytest's exit codes where tests ran, and all passed or some failed; others mean that it could not do its work."""


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments, or everything, and once more what may be asked again; the exit code."""
    # A shell that starts us in the background has us ignore Ctrl-C; programs of tests that send it would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start hundreds of programs, which would all compile ours
    with tempfile.TemporaryDirectory(prefix="hq-suite-") as folder:
        groups = {"tests": arguments} if arguments else {**REAL_TIME, UNIT: [UNIT]}
        caches = {name: Path(folder, str(number)) for number, name in enumerate(groups)}
        commands = {name: _pytest("-o", f"cache_dir={caches[name]}", *groups[name]) for name in groups}
        if arguments:
            codes = {name: _run(command) for name, command in commands.items()}
        else:
            computing = {"checks": CHECKS, UNIT: commands[UNIT]}
            commands |= {name: [*LOWEST_PRIORITY, *command] for name, command in computing.items()}
            codes = side_by_side(commands, at_once=(os.cpu_count() or 1) > 1)
        failed = sorted(test for cache in caches.values() for test in _failed(cache))
    if all(codes[name] in (OK, FAILED) for name in groups) and (again := worth_asking_again(failed)):
        asked_again = _asked_again(again)
        codes = {name: asked_again if name in groups else code for name, code in codes.items()}
    for name, code in codes.items():
        if code and not arguments:
            print(f"suite: FAILED: {name} ({code})")
    return max(codes.values())


def worth_asking_again(failed: list[str]) -> list[str]:
    """All of `failed` (pytest's node ids) where they are few, and tests; none of them otherwise."""
    few = 0 < len(failed) <= SECOND_RUNS_MAX
    return failed if few and all("::" in test for test in failed) else []


def side_by_side(commands: Mapping[str, Sequence[str]], *, at_once: bool = True) -> dict[str, int]:
    """Run commands, by name, at once or one after the other, and print what each says when it has ended.

    Returns:
        The exit code of each; one that a signal ended has 128 and its number, as in a shell.
    """
    print(f"suite: {', '.join(commands)}: what each says follows when it has ended", flush=True)
    with ThreadPoolExecutor(len(commands) if at_once else 1) as pool:
        return dict(zip(commands, pool.map(_told, commands, commands.values()), strict=True))


def _told(name: str, command: Sequence[str]) -> int:
    code, said, took_s = _listened_to(command)
    print(f"suite: {name}: exit code {code} after {took_s:.0f} s\n{said}\n", end="", flush=True)
    return code


def _listened_to(command: Sequence[str]) -> tuple[int, str, float]:
    begin_s = time.monotonic()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    return _code(done.returncode), done.stdout, time.monotonic() - begin_s


def _asked_again(tests: list[str]) -> int:
    print(f"suite: {len(tests)} failed; each runs once more, by itself", flush=True)
    broken = [test for test in tests if _run(_pytest("-p", "no:cacheprovider", test))]
    print(f"suite: kept in {unstable.keep(again=tests, failed_twice=broken)}")
    for test in tests:
        print(f"suite: {'FAILED TWICE' if test in broken else 'UNSTABLE, passed in its second run'}: {test}")
    return FAILED if broken else OK


def _failed(cache: Path) -> list[str]:
    path = cache / "v/cache/lastfailed"
    return list(json.loads(path.read_text())) if path.exists() else []


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _run(command: Sequence[str]) -> int:
    return _code(subprocess.run(command, check=False).returncode)


def _code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
