"""Run programs of torch ranks and read what they report."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch_ranks import PROGRAMS, RankResult, RunRanks, environment


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRanks]:
    """Run scenarios of a program: {scenario: [result of rank 0, ...]}. One process imports torch for all programs.

    A process that has not answered, because pytest gave up the test or because it ended, is asked no more: what comes
    late would be taken for the next answer.
    """
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / "ranks.py")]
    servers: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with contextlib.ExitStack() as stack:

        def run(
            program: str, scenarios: dict[str, int], *, limit_s: float = 240, **changes: str
        ) -> dict[str, list[RankResult]]:
            server = servers.pop() if servers else stack.enter_context(start())
            assert server.stdin is not None
            assert server.stdout is not None
            output = tmp_path_factory.mktemp("ranks")
            request: dict[str, object] = {"program": program, "output": str(output), "limit_s": limit_s}
            request |= {"scenarios": scenarios, "environment": changes}
            print(json.dumps(request), file=server.stdin, flush=True)
            answer = server.stdout.readline()
            assert answer, f"what starts ranks ended while it ran {program}; see what it says on stderr"
            servers.append(server)
            codes = json.loads(answer)
            assert codes is not None, f"{program} cannot be loaded; see what it says on stderr"
            return {
                name: [
                    RankResult(rank, codes[name][str(rank)], (output / f"{name}.{rank}").read_text(errors="replace"))
                    for rank in range(ranks)
                ]
                for name, ranks in scenarios.items()
            }

        yield run
