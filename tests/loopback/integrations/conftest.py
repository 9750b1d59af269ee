"""Run programs of torch ranks and read what they report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch_ranks import PROGRAMS, RankResult, RunRanks, environment


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRanks]:
    """Run scenarios of a program: {scenario: [result of rank 0, ...]}. One process imports torch for all programs."""
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / "ranks.py")]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def run(
            program: str, scenarios: dict[str, int], *, limit_s: float = 240, **changes: str
        ) -> dict[str, list[RankResult]]:
            output = tmp_path_factory.mktemp("ranks")
            request: dict[str, object] = {"program": program, "output": str(output), "limit_s": limit_s}
            request |= {"scenarios": scenarios, "environment": changes}
            print(json.dumps(request), file=server.stdin, flush=True)
            codes = json.loads(server.stdout.readline())
            assert codes is not None, f"{program} cannot be loaded; see what it says on stderr"
            return {
                name: [
                    RankResult(rank, codes[name][str(rank)], (output / f"{name}.{rank}").read_text(errors="replace"))
                    for rank in range(ranks)
                ]
                for name, ranks in scenarios.items()
            }

        yield run
        server.stdin.close()
