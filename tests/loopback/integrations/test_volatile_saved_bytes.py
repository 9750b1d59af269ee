"""A member says how many bytes it has sent, and how many DDP would have sent for the same steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S, wait_until
from volatile_members import adamw, in_threads, model, register, train

from integrations.volatile import StreamingDiLoCo
from transport.inspection import jobs
from transport.volatile.group import VolatileGroup

STEPS, SIZE = 40, 2


def test_members_that_meet_seldom_and_in_4_bits_tell_what_that_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    networks, where = [model(2048) for _ in range(SIZE)], register()
    parameters = sum(one.numel() for one in networks[0].parameters())
    told: dict[str, dict[str, Any]] = {}
    together = threading.Barrier(SIZE, timeout=LIMIT_S)

    def ask(_group: VolatileGroup) -> None:
        def all_sent() -> bool:
            for path in tmp_path.glob("hive-qos/jobs/*.sock"):
                own = jobs.ask(path)["volatile"]
                told[own["member"]] = own
            # Each fragment has met five times, in half a byte a value.
            return all(one["sent_bytes"] > 5 * parameters / 2 for one in told.values())

        together.wait()
        wait_until(all_sent)
        together.wait()  # nobody leaves before

    def run(rank: int) -> None:
        algorithm = StreamingDiLoCo(networks[rank].parameters(), every=8, fragments=2, overlap=2)
        train(algorithm, networks[rank], adamw(networks[rank]), where, rank=rank, size=SIZE, steps=STEPS, after=ask)

    in_threads(SIZE, run)
    assert sorted(told) == ["member-0", "member-1"]
    for one in told.values():
        assert one["inner_steps"] == STEPS
        # Of two members each sends half, and half of the sums. The first one waits for the other after six steps.
        assert STEPS - 6 <= one["ddp_bytes"] / (4 * parameters) <= STEPS
        assert one["sent_bytes"] < one["ddp_bytes"] / 10
