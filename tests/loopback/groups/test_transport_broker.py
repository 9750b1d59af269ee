"""What a group tells the broker of its host, seen by a server that only listens: sockets, bursts, measurements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from listening_broker import ListeningBroker

from transport import Group, MemoryRendezvous, Settings


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ListeningBroker]:
    broker = ListeningBroker(tmp_path / "session.sock")
    yield broker
    broker.close()


def test_a_group_registers_its_sockets_announces_bursts_and_reports_measurements(broker):
    rendezvous = MemoryRendezvous()
    settings = [
        Settings(
            listen="127.0.0.1",
            engine=os.environ["HIVE_ENGINE"],
            job="j",
            job_secret=b"secret of the test",
            broker=str(broker.path),
        ),
        Settings(
            listen="127.0.0.1",
            engine=os.environ["HIVE_ENGINE"],
            job="j",
            job_secret=b"secret of the test",
            broker="off",
        ),
    ]

    def run(rank: int) -> None:
        with Group.connect(rendezvous, rank=rank, world_size=2, settings=settings[rank]) as group:
            for _ in range(2):
                group.allreduce(np.ones(100_000, "f4")).wait()
                if rank == 0:
                    broker.wait_for("burst-end", count=_ + 1)
                group.barrier().wait()
            if rank == 0:
                broker.wait_for("report")
            group.barrier().wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    broker.wait_for("bye")

    registered = broker.wait_for("register", count=2)
    assert [(one["class"], one["role"]) for one in registered] == [("compute", "gradient"), ("compute", "bulk")]
    assert len(set(broker.ports)) == 2
    first, second = broker.wait_for("burst", count=2)
    # Each of two ranks sends half of the 400 kB as its contribution and the other half as its result, beside headers.
    assert (first["bytes"], first["step"], first["job"]) == ({"127.0.0.1": 400_000}, 1, "j")
    assert (second["bytes"], second["step"]) == ({"127.0.0.1": 400_000}, 2)
    connection = broker.wait_for("report")[-1]["connections"][0]
    assert connection["class"] == "compute"
    assert connection["peer"].startswith("127.0.0.1:")
    assert 0 < connection["rtt_s_min"] <= connection["rtt_s"]
    assert connection["rtt_s_min"] < 5


def test_a_broker_that_is_not_there_changes_nothing(tmp_path):
    settings = Settings(
        listen="127.0.0.1",
        engine=os.environ["HIVE_ENGINE"],
        job_secret=b"secret of the test",
        broker=str(tmp_path / "nobody.sock"),
    )
    rendezvous = MemoryRendezvous()

    def run(rank: int) -> float:
        with Group.connect(rendezvous, rank=rank, world_size=2, settings=settings) as group:
            tensor = np.ones(50_000, "f4")
            group.allreduce(tensor).wait()
            group.barrier().wait()
            return float(tensor[-1])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [2.0, 2.0]
