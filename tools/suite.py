"""Run the test suite. A few tests of real time that fail get a second run, and the report ends with their names.

A test over sockets or in the lab can be broken by a machine that stands still for seconds, whatever it waits for. At
most `SECOND_RUNS_MAX` of those may fail and still be asked again, each in a process of its own, where its fixtures are
made anew; whatever fails again, and everything else, fails the run. A name that keeps being reported is a defect.

    python -m tools.suite [PYTEST ARGUMENT...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECOND_RUNS_MAX = 3
REAL_TIME = ("tests/loopback/", "tests/lab/")
FAILED = 1
"""pytest's exit code where tests ran and some failed; others mean that it could not do its work."""
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments, once more for what may be asked again; its exit code."""
    code = _pytest("--cache-clear", *arguments)
    if code != FAILED:
        return code
    failed = sorted(json.loads(_LAST_FAILED.read_text()))
    again = worth_asking_again(failed)
    if not again:
        return code
    print(f"suite: {len(again)} failed that depend on real time; each runs once more, by itself", flush=True)
    broken = [test for test in again if _pytest("-p", "no:cacheprovider", test)]
    for test in again:
        print(f"suite: {'FAILED TWICE' if test in broken else 'UNSTABLE, passed in its second run'}: {test}")
    return FAILED if broken else 0


def worth_asking_again(failed: list[str]) -> list[str]:
    """All of `failed` (pytest's node ids) where they are few and depend on real time; none of them otherwise."""
    few = 0 < len(failed) <= SECOND_RUNS_MAX
    return failed if few and all(test.startswith(REAL_TIME) and "::" in test for test in failed) else []


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
