"""Every check with every seed, in a process of its own; no lab."""

from __future__ import annotations

import contextlib
import time

from tools.bench.place import loopback, python
from tools.bench.side import Side
from tools.collectivesbench.budget import Budget
from tools.volatilebench.algorithms import Algorithm
from tools.volatilebench.bounds import CHECKS
from tools.volatilebench.run import Run

NAME = "checks"
CHECK_S_MAX = 900.0
"""One that takes longer hangs: the longest trains four members in as many threads."""
CONTENDER = Algorithm(name="one process")


def hold(run: Run, budget: Budget) -> None:
    """One seed after the other, so that all checks have some where time is short."""
    settings = run.settings
    took_s: dict[str, float] = {}
    side = Side(loopback("checks"), python("tools.volatilebench.programs.checks"), log=run.logs / "checks.log")
    with contextlib.closing(side):
        for seed in range(settings.seeds):
            for check in CHECKS:
                expected_s = took_s.get(check.name, 0.0)
                if budget.left_s() < expected_s:
                    run.leave_out(NAME, f"{check.what}, seed {seed}", expected_s, budget)
                    continue
                began_s = time.monotonic()
                with run.guarded(NAME, CONTENDER):
                    order = {"do": "check", "check": check.name, "seed": seed, "steps": settings.checks_steps}
                    found = side.ask(order, wait_s=CHECK_S_MAX)
                    run.write(NAME, CONTENDER, kind="check", case=check.name, repetition=seed, **found)
                    run.say(f"{NAME}: {check.what}, seed {seed}: {found['value']:.5g}")
                took_s[check.name] = time.monotonic() - began_s
