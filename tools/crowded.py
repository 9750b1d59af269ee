"""Run tests in several copies side by side, where Python changes threads 5,000 times as often: what busy machines show.

    python -m tools.crowded [--copies 6] [PYTEST ARGUMENT...]

Without arguments those of the transport and of volatile groups. Each copy is a process of its own and stops at its
first failure, of which it prints the end. Its whole report lies in `out/crowded`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

REPORTS = Path("out/crowded")
SWITCH_S = 1e-6
"""Python's own is 5 ms."""
TESTS = ("tests/unit/transport", "tests/loopback/groups", "tests/loopback/integrations/test_volatile_algorithms.py")
SHOWN_LINES = 60


def pytest_configure() -> None:
    """As a plugin, which this module is in each copy."""
    sys.setswitchinterval(SWITCH_S)


def main(arguments: list[str]) -> int:
    """Run the copies; 0 where all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=6, help="side by side; 6 without")
    options, tests = parser.parse_known_args(arguments)
    if options.copies < 1:
        parser.error(f"--copies {options.copies}: at least 1")
    REPORTS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "tools.crowded", "-p", "no:cacheprovider"]
    reports = [REPORTS / f"{number}.log" for number in range(1, options.copies + 1)]
    copies: list[subprocess.Popen[bytes]] = []
    try:
        for report in reports:
            with report.open("wb") as output:
                copies.append(subprocess.Popen([*command, *(tests or TESTS)], stdout=output, stderr=subprocess.STDOUT))
        codes = [copy.wait() for copy in copies]
    finally:
        for copy in copies:
            copy.terminate()
            copy.wait()
    for report, code in zip(reports, codes, strict=True):
        lines = report.read_text(errors="replace").splitlines()
        shown = lines[-SHOWN_LINES:] if code else lines[-1:]
        print("\n".join([f"crowded: {report}: {'FAILED' if code else 'passed'}", *(f"  {line}" for line in shown)]))
    return 1 if any(codes) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
