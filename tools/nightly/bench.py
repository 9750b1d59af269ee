"""A short benchmark of the engines beside the last good one of this machine: fails where a ratio got worse.

The reports are kept in the state directory. One that is worse does not take the last good one's place, so that the next
night fails, too. Where worse is meant, remove the directory that the message names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.measure.compare import FILE, REPETITIONS_MIN, print_comparison, read_report, regressions
from tools.measure.reporting import console_of
from tools.nightly.state import state_directory

SCENARIOS = ("loopback", "lan", "allreduce")
"""Throughput without and with a link, and a collective: each beside contenders of the same run."""

OUTPUT = Path("out/nightly/bench")
KEPT = "bench"


def main() -> int:
    """Measure, compare with what is kept, and keep what is not worse."""
    command = [sys.executable, "-m", "tools.bench", "--quick", f"--repetitions={REPETITIONS_MIN}"]
    done = subprocess.run([*command, f"--output={OUTPUT}", *SCENARIOS], check=False)
    if done.returncode:
        return done.returncode
    return compare_and_keep(OUTPUT, state_directory() / KEPT)


def compare_and_keep(measured: Path, kept: Path) -> int:
    """Compare a report with the one that is kept, and replace that where nothing got worse; the exit code."""
    now = read_report(measured)
    if not (kept / FILE).exists():
        print(f"bench: nothing to compare with yet; kept in {kept}")
    else:
        before = read_report(kept)
        print_comparison(console_of(log_columns=150), [before, now])
        if found := regressions(before, now):
            print(f"bench: WORSE than the last good run: {'; '.join(found)}")
            print(f"bench: where that is meant, remove {kept}: the next run then begins anew")
            return 1
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(measured / FILE, kept / FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
