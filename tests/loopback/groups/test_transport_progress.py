"""Messages that nobody receives yet stop nobody else, and urgent ones overtake: two ranks over the real engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from patience import most_of, wait_until

from transport import Group, MemoryRendezvous, Priority, Settings

LOCAL = Settings(listen="127.0.0.1", broker="off", shared_memory=False, job_secret=b"secret of the test")
MIB = 2**20


@pytest.fixture
def both() -> Iterator[Callable[[Callable[[Group], Any]], list[Any]]]:
    """Run a body with the group of each of two ranks, at the same time."""
    store = MemoryRendezvous()
    with ThreadPoolExecutor(2) as pool:

        def connect(rank: int) -> Group:
            return Group.connect(store, rank=rank, world_size=2, settings=LOCAL, connect_timeout_s=60.0, timeout_s=60.0)

        groups = list(pool.map(connect, range(2)))
        yield lambda body: list(pool.map(body, groups))
        list(pool.map(lambda group: group.close(timeout_s=10.0), groups))


def test_collectives_pass_a_send_that_nobody_receives_yet(both):
    big = np.arange(40 * MIB // 4, dtype="i4")

    def body(group: Group) -> Any:
        sending = group.send(big, 1) if group.rank == 0 else None
        ones = np.ones(1000, "f4")
        group.allreduce(ones, timeout_s=60).wait()
        group.barrier(timeout_s=60).wait()
        assert (ones == 2).all()
        if sending is None:
            return group.recv(None, 0).wait()
        return sending.wait()

    received = both(body)[1]
    assert (received == big).all()


@pytest.mark.parametrize(("count", "size"), [(5, 7_900_000), (60, 1_000_000), (400, 60_000)])
def test_control_and_collectives_pass_many_sends_that_nobody_receives_yet(both, count, size):
    payload = np.arange(size, dtype="u1")

    def body(group: Group) -> None:
        if group.rank == 0:
            sends = [group.send(payload, 1, tag=tag) for tag in range(count)]
            until_nothing_moves(group)  # they have gone as far as they can
        group.barrier(timeout_s=60).wait()
        ones = np.ones(300_000, "f4")
        group.allreduce(ones, timeout_s=60).wait()
        assert (ones == 2).all()
        if group.rank == 0:
            for send in sends:
                send.wait()
        else:
            for tag in reversed(range(count)):
                assert (group.recv(None, 0, tag=tag).wait() == payload).all()

    both(body)


def until_nothing_moves(group: Group) -> None:
    """Wait until a look at the statistics, a few of their intervals of 100 ms later, finds as many bytes delivered."""
    looks: list[int] = [-1]

    def rests() -> bool:
        looks.append(sum(one.delivered_bytes for one in group._runtime.statistics().values()))
        return looks[-1] == looks[-2]

    wait_until(rests, pause_s=0.4)


def test_an_urgent_message_overtakes_a_large_one_that_is_under_way(both):
    size = 24 * MIB

    def body(group: Group) -> Any:
        if group.rank == 0:
            group.barrier().wait()
            large = group.send(np.zeros(size, "u1"), 1, tag=1, priority=Priority.GRADIENT)
            time.sleep(0.02)  # so that it is under way
            urgent = group.send(np.zeros(MIB, "u1"), 1, tag=2, priority=Priority.ACTIVATION_GRADIENT)
            urgent.wait()
            large.wait()
            return None
        large = group.recv(np.empty(size, "u1"), 0, tag=1)
        urgent = group.recv(np.empty(MIB, "u1"), 0, tag=2)
        group.barrier().wait()
        urgent.wait()
        return large.bytes_done, large.done()

    # A stall of either side may let the large one end first; without overtaking it always does.
    most_of(lambda: both(body)[1], lambda found: found == (0, False))
