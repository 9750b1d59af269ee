"""All tests of PyTorch's own distributed suite that pass over Gloo pass over hive, but for those that say why not.

The suite opens some tests to every backend and ties others to Gloo by name: those run over hive under that name.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

Outcomes = dict[str, dict[str, str]]
WAYS = {"gloo": {"BACKEND": "gloo"}, "hive": {"BACKEND": "hive"}, "hive as gloo": {"BACKEND": "gloo", "AS_GLOO": "1"}}
LIMIT_S = 1800
EXCEPTIONS: dict[str, str] = {}
"""What passes over Gloo and not over hive under either name, and why."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of each test, by the way in which the suite ran."""
    folder: Path = tmp_path_factory.mktemp("suite")
    found = {}
    for way, environment in WAYS.items():
        output = folder / f"{way}.json"
        with socket.socket() as free, Path(folder, f"{way}.log").open("w") as log:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            free.close()
            subprocess.run(
                [sys.executable, "-W", "ignore", str(Path(__file__).parent / "suite.py")],
                env={**os.environ, **environment, "WORLD_SIZE": "3", "MASTER_PORT": port, "OUTCOMES": str(output)},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        assert output.exists(), Path(log.name).read_text(errors="replace")[-3000:]
        found[way] = json.loads(output.read_text())
    return found


def passed(outcomes: Outcomes, way: str) -> set[str]:
    return {name for name, outcome in outcomes[way].items() if outcome == "passed"}


@pytest.mark.timeout(3 * LIMIT_S)
def test_nothing_fails_over_hive(outcomes: Outcomes) -> None:
    failed = {name for name, outcome in outcomes["hive"].items() if outcome == "failed"}
    assert not failed
    assert len(passed(outcomes, "hive")) >= 60  # torch 2.15 opens 66 to every backend


def test_what_passes_over_gloo_passes_over_hive_or_is_explained(outcomes: Outcomes) -> None:
    ours = passed(outcomes, "hive") | passed(outcomes, "hive as gloo")
    assert passed(outcomes, "gloo") - ours == set(EXCEPTIONS)
    assert len(passed(outcomes, "gloo")) >= 80
