"""`make nightly`: run every step, whatever became of those before it, and sum up what each said and took.

    python -m tools.nightly [STEP...]     all steps without arguments

What a step says is shown as it comes and kept in `out/nightly/STEP.log`. A step that left something out, because this
machine lacks what it needs, is incomplete: it did not find out what it is for, and the run fails.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOGS = Path("out/nightly")
MAKE = ("make", "--no-print-directory", "--keep-going")
"""`--keep-going` has every part of a target run, also after one that failed."""

STEPS: Mapping[str, Sequence[str]] = {
    "long": (*MAKE, "test-long"),
    "engines": (*MAKE, "test-engines"),
    "torch": (*MAKE, "test-torch"),
    "torch-oldest": (*MAKE, "test-torch-oldest"),
    "fuzz": (*MAKE, "fuzz"),
    "sanitize": (*MAKE, "sanitize"),
    "pythons": (*MAKE, "test-pythons"),
    "kernels": (*MAKE, "test-kernels"),
    "page": (*MAKE, "test-page"),
    "storage": (*MAKE, "test-storage"),
    "etcd": (*MAKE, "test-etcd"),
    "churn": (*MAKE, "test-churn"),
    "crowded": (*MAKE, "test-crowded"),
    "chart": (*MAKE, "test-chart"),
    "image": (*MAKE, "test-image"),
    "deb": (*MAKE, "test-deb"),
    "audit": (*MAKE, "audit"),
    "bench": (*MAKE, "bench-nightly"),
    "unstable": (sys.executable, "-m", "tools.nightly.unstable"),
}
"""In the order of a run: `unstable` comes last, for the tests before it add to its record."""

LEFT_OUT = re.compile(r"^.* left out: .*$", re.MULTILINE)
"""How every tool of this project says that it could not do its work here."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step ended."""

    name: str
    code: int
    seconds: float
    left_out: Sequence[str]

    @property
    def passed(self) -> bool:
        """Whether it did all that it is for, and found nothing."""
        return self.code == 0 and not self.left_out

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED ({self.code})" if self.code else "INCOMPLETE"
        lines = [f"nightly: {self.name:10} {verdict:14} {self.seconds:6.0f} s"]
        return "\n".join([*lines, *(f"nightly:   {line}" for line in self.left_out)])


def main(names: Sequence[str], *, steps: Mapping[str, Sequence[str]] = STEPS) -> int:
    """Run the steps of these names, or all; 0 where every one of them passed."""
    if unknown := [name for name in names if name not in steps]:
        print(f"nightly: no step {', '.join(unknown)}; there are {', '.join(steps)}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = [run(name, steps[name]) for name in steps if not names or name in names]
    print("\n".join(str(outcome) for outcome in outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def run(name: str, command: Sequence[str]) -> Outcome:
    """Run one step, show what it says, and keep it."""
    print(f"nightly: {name}: {' '.join(command)}", flush=True)
    begin_s = time.monotonic()
    log = LOGS / f"{name}.log"
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            print(line, end="", flush=True)
    said = log.read_text(encoding="utf-8")
    return Outcome(
        name=name,
        code=process.returncode,
        seconds=time.monotonic() - begin_s,
        left_out=LEFT_OUT.findall(said),
    )


if __name__ == "__main__":
    # A shell that starts us in the background has us ignore Ctrl-C; tests that send it would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
