"""Ranks that do not come are named, while the others wait for them and when they give up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from memory_engine import MemoryNetwork

from hive_qos.errors import TimedOutError
from transport import MemoryRendezvous, Settings
from transport.bootstrap import connect
from transport.runtime import Runtime

WORLD = 5


def test_ranks_that_wait_say_once_who_is_late_and_give_up_with_all_their_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connect, "LATE_S", 0.6)
    store, network = MemoryRendezvous(), MemoryNetwork()

    def connected(rank: int) -> str:
        with pytest.raises(TimedOutError) as caught:
            Runtime.connect(
                store,
                rank=rank,
                world_size=WORLD,
                name="w",
                timeout_s=2.0,
                settings=Settings(broker="off", job="j"),
                factories=network.factories(),
            )
        return str(caught.value)

    came = [0, 2, 4]
    with ThreadPoolExecutor(len(came)) as pool:
        errors = list(pool.map(connected, came))
    assert all("nothing from rank 1, 3" in error for error in errors), errors
    said = [record.getMessage() for record in caplog.records if record.name == "transport.bootstrap.connect"]
    assert sorted(message.partition(" has waited ")[0] for message in said) == [
        f"hive-qos: rank {rank}" for rank in came
    ]
    assert all("for rank 1, 3, of 2 s" in message for message in said), said


def test_a_rank_that_waits_for_rank_0_alone_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connect, "LATE_S", 0.0)
    with pytest.raises(TimedOutError, match="nothing from rank 0:"):
        Runtime.connect(
            MemoryRendezvous(),
            rank=3,
            world_size=WORLD,
            name="w",
            timeout_s=1.0,
            settings=Settings(broker="off", job="j"),
            factories=MemoryNetwork().factories(),
        )
    assert "for rank 0, of 1 s" in caplog.text
