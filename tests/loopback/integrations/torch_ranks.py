"""What programs of torch ranks report, and the environment that they run in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
DEVICE = os.environ.get("HIVE_TEST_DEVICE", "cpu")
"""Where programs' tensors lie; "cuda" for `make test-gpu`."""


@dataclass(frozen=True)
class RankResult:
    """How one rank ended and what it said."""

    rank: int
    exit_code: int
    output: str

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [
            json.loads(line.removeprefix("REPORT ")) for line in self.output.splitlines() if line.startswith("REPORT ")
        ]


RunRanks = Callable[..., dict[str, list[RankResult]]]


def environment(**changes: str) -> dict[str, str]:
    """This process' environment without what would steer a rank, one thread each, no broker, and a GPU if asked for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIVE_", "TORCH", "MASTER_"))}
    if DEVICE == "cpu":
        kept["CUDA_VISIBLE_DEVICES"] = ""
    return {**kept, "OMP_NUM_THREADS": "1", "HIVE_BROKER": "off", "HIVE_TEST_DEVICE": DEVICE, **changes}
