"""Collectives from several threads of each rank, while one of them aborts or closes: each ends, by result or error."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_cases import need
from patience import LIMIT_S

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, MisuseError
from transport import Group, MemoryRendezvous, Settings

RANKS, THREADS, OPERATIONS = 3, 4, 40
ABORTED_AT = 15
SETTINGS = Settings(listen="127.0.0.1", broker="off", job_secret=b"secret of the test")


@pytest.fixture(params=["native", "aioquic"])
def groups(request: pytest.FixtureRequest) -> Iterator[list[Group]]:
    need(request.param)
    store = MemoryRendezvous()
    settings = dataclasses.replace(SETTINGS, engine=request.param)
    with ThreadPoolExecutor(RANKS) as pool:

        def connect(rank: int) -> Group:
            return Group.connect(store, rank=rank, world_size=RANKS, settings=settings, timeout_s=90.0)

        connected = list(pool.map(connect, range(RANKS)))
        yield connected
        list(pool.map(Group.close, connected))


@pytest.mark.parametrize("how", ["nothing", "abort", "close"])
def test_threads_that_share_connections_all_end_whatever_one_of_them_does(groups: list[Group], how: str) -> None:
    """Each thread has a group of its own; thread 0 of rank 0 ends its own group, or all of the rank's, midway."""
    subs = [[group.subgroup(range(RANKS), name=f"thread {number}") for number in range(THREADS)] for group in groups]
    outcomes: dict[tuple[int, int], str | HiveError] = {}

    def body(rank: int, number: int) -> None:
        sub = subs[rank][number]
        try:
            for step in range(OPERATIONS):
                tensor = np.full(20_000, float(rank + step), "f4")
                work = sub.allreduce(tensor)
                if (rank, number, step) == (0, 0, ABORTED_AT) and how == "abort":
                    sub.abort("the test says so")
                if (rank, number, step) == (0, 0, ABORTED_AT) and how == "close":
                    groups[0].close()
                work.wait()
                assert (tensor == sum(other + step for other in range(RANKS))).all()
            outcomes[rank, number] = "done"
        except HiveError as error:
            outcomes[rank, number] = error
            if how == "abort":
                sub.give_up("the one before was aborted")  # which may have ended well elsewhere: they wait in the next

    threads = [threading.Thread(target=body, args=(rank, number)) for rank in range(RANKS) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    ended = {(rank, number) for rank in range(RANKS) for number in range(THREADS) if how == "close" or number == 0}
    for key, outcome in outcomes.items():
        if how == "nothing" or key not in ended:
            assert outcome == "done", key
        else:
            assert isinstance(outcome, CancelledError | ConnectionLostError | MisuseError), (key, outcome)
    assert len(outcomes) == RANKS * THREADS
    if how == "close":
        with pytest.raises(MisuseError):
            subs[0][0].barrier()
