"""Run programs of torch ranks and read what they report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from torch_ranks import PROGRAMS, RankResult, RunRanks, environment


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Run scenarios of a program: {scenario: [result of rank 0, ...]}."""

    def run(
        program: str, scenarios: dict[str, int], *, limit_s: float = 240, **changes: str
    ) -> dict[str, list[RankResult]]:
        output = tmp_path_factory.mktemp("ranks")
        done = subprocess.run(
            [
                *(sys.executable, "-W", "ignore", str(PROGRAMS / "ranks.py"), str(PROGRAMS / program), str(output)),
                str(limit_s),
                *(f"{name}:{ranks}" for name, ranks in scenarios.items()),
            ],
            env=environment(**changes),
            capture_output=True,
            text=True,
            timeout=limit_s + 40,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stdout.splitlines()[-1])
        return {
            name: [
                RankResult(rank, codes[name][str(rank)], (output / f"{name}.{rank}").read_text(errors="replace"))
                for rank in range(ranks)
            ]
            for name, ranks in scenarios.items()
        }

    return run
