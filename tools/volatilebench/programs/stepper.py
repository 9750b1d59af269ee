"""A member whose steps are asleep and then exchange a quarter of its parameters; and one that joins and leaves again.

Nothing is trained: what counts is how long a joiner's fetch takes, and what the steps of the others lose. The state is
eight times what a step exchanges: all parameters, and the outer momentum.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from integrations.volatile import StreamingDiLoCo, torch_register
from tools.bench.programs.conversation import Begun, Order, cpu_s
from tools.volatilebench.programs.trainings import TIMEOUT, store_of

FRAGMENTS = 4


def steps(order: Order, begun: Begun) -> Mapping[str, Any]:
    """Step until the file `until` is there; a line in `record` for each step.

    Args:
        order: `store`, `job`, `name`, `members_min`, `record`, `until`, `compute_s`, `payload_bytes` (of a step).
    """
    begin_cpu_s, until, algorithm = cpu_s(), Path(order["until"]), _algorithm(order)
    with (
        algorithm.join(torch_register(store_of(order)), name=order["name"], members_min=order["members_min"]),
        Path(order["record"]).open("a", encoding="utf-8") as out,
    ):
        begun()
        while not until.exists():
            begin_s = time.monotonic()
            time.sleep(order["compute_s"])
            with algorithm.step():
                pass
            met = algorithm.last
            line = {"begin_s": begin_s, "end_s": time.monotonic(), "members": len(met.members) if met else 0}
            out.write(json.dumps(line) + "\n")
            out.flush()
    return {"cpu_s": cpu_s() - begin_cpu_s}


def fetch(order: Order, begun: Begun) -> Mapping[str, Any]:
    """Join with the state of the others, take part in one step, and leave."""
    algorithm, asked_s = _algorithm(order), time.monotonic()
    timeout_s = TIMEOUT.total_seconds()
    with algorithm.join(torch_register(store_of(order)), name=order["name"], join_timeout_s=timeout_s):
        joined_s = time.monotonic()
        with algorithm.step():
            pass
    return {"asked_s": asked_s, "joined_s": joined_s, "left_s": time.monotonic()}


def _algorithm(order: Order) -> StreamingDiLoCo:
    """It exchanges one of as many fragments in each step, uncompressed, and waits for it."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(order["payload_bytes"] // 4)) for _ in range(FRAGMENTS)]
    return StreamingDiLoCo(parameters, every=FRAGMENTS, fragments=FRAGMENTS, overlap=0, compression="")
