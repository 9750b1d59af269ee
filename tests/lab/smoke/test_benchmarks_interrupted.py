"""What an interruption of a benchmark leaves behind: what was measured so far, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S, wait_until

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[3]
MEASURED = {
    "brokerbench sender --steps=3 --variants=none --rounds=100": ("condition", {"idle"}),
    "collectivesbench uneven --repetitions=100": ("contender", {"hive", "gloo cubic", "gloo bbr"}),
    "volatilebench loss --workers=2 --steps=20 --seeds=100": ("contender", {"DDP gloo", "DiLoCo"}),
}
"""What is interrupted once its records have these values of a key."""


def lab_namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("hq")}


@pytest.mark.timeout(300)  # a dozen processes begin, and a busy machine takes seconds to import torch for each
@pytest.mark.parametrize("words", MEASURED)
def test_ctrl_c_takes_everything_down_and_keeps_what_was_measured(tmp_path: Path, words: str) -> None:
    name, *arguments = words.split()
    key, wanted = MEASURED[words]
    before, records = lab_namespaces(), tmp_path / "records.jsonl"

    def rows() -> list[dict[str, Any]]:
        return [json.loads(line) for line in records.read_text().split("\n")[:-1]] if records.exists() else []

    run = subprocess.Popen(
        [sys.executable, "-m", f"tools.{name}", *arguments, "--quick", "--output", str(tmp_path)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: wanted <= {row.get(key) for row in rows()}, what=rows, limit_s=200.0)
        os.kill(run.pid, signal.SIGINT)
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 130, said
    assert "Traceback" not in said
    wait_until(lambda: lab_namespaces() <= before, what=lambda: lab_namespaces() - before)
    assert set(rows()[0]["versions"]) >= {"commit", "dirty"}
    assert json.loads((tmp_path / "report.json").read_text())["failures"] == []
    assert (tmp_path / "report.md").exists()
