"""Short benchmarks of engines and collectives beside the last good ones of this machine: fail where a ratio got worse.

What is worse is measured once more, and counts where it is worse again: of 32 ratios of the same engines, measured
twice on a machine that had other work, two were called worse. The reports are kept in the state directory. One that
is worse does not take the last good one's place, so that the next night fails, too. Where worse is meant, remove the
directory that the message names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tools.measure.compare import FILE, REPETITIONS_MIN, Report, print_comparison, read_report, regressions
from tools.measure.reporting import console_of
from tools.nightly.state import state_directory

BENCHMARKS: Mapping[str, Sequence[str]] = {"bench": ("loopback", "lan"), "collectivesbench": ("lan",)}
"""Of `tools`, with scenarios: throughput without and with a link, and collectives, each beside others of its run."""

OUTPUT = Path("out/nightly")


def main() -> int:
    """Measure, compare with what is kept, and keep what is not worse; both, also where the first is worse."""
    codes = []
    for name, scenarios in BENCHMARKS.items():
        try:
            codes.append(compare_and_keep(partial(measure, name, scenarios), OUTPUT / name, state_directory() / name))
        except subprocess.CalledProcessError as error:
            codes.append(error.returncode)
    return max(codes)


def measure(name: str, scenarios: Sequence[str]) -> None:
    """Leave a benchmark's report in its place in `OUTPUT`.

    Raises:
        CalledProcessError: the benchmark failed.
    """
    command = [sys.executable, "-m", f"tools.{name}", "--quick", f"--repetitions={REPETITIONS_MIN}"]
    subprocess.run([*command, f"--output={OUTPUT / name}", *scenarios], check=True)


def compare_and_keep(measure: Callable[[], object], measured: Path, kept: Path) -> int:
    """Measure, compare with the report that is kept, and replace that where nothing got worse; the exit code.

    Args:
        measure: leaves a report in `measured`.
    """
    measure()
    if (kept / FILE).exists():
        before = read_report(kept)
        found = _found_worse(before, measured)
        if found:
            print(f"bench: worse: {'; '.join(sorted(found))}; measuring once more", flush=True)
            measure()
            found &= _found_worse(before, measured)
        if found:
            print(f"bench: WORSE than the last good run, twice: {'; '.join(sorted(found))}")
            print(f"bench: where that is meant, remove {kept}: the next run then begins anew")
            return 1
    else:
        print(f"bench: nothing to compare with yet; kept in {kept}")
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(measured / FILE, kept / FILE)
    return 0


def _found_worse(before: Report, measured: Path) -> set[str]:
    now = read_report(measured)
    print_comparison(console_of(log_columns=150), [before, now])
    return set(regressions(before, now))


if __name__ == "__main__":
    sys.exit(main())
