"""A collective that a rank has not called yet is in nobody's way: its sender holds it back, and all else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest
from engine_cases import WITH_NATIVE, need

from hive_qos.errors import CancelledError, TimedOutError
from transport import Group, MemoryRendezvous, Settings, Work
from transport.mesh.collective_dispatch import CollectiveDispatch

MIB = 2**20
SOON_S = 30.0
"""What is not held up takes a second on a busy machine."""

ALL = ["native, shared memory", "native", "Python's executor over native"] if WITH_NATIVE else []


@pytest.fixture(params=[*ALL, "aioquic"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Group]]:
    engine = "aioquic" if request.param == "aioquic" else "native"
    need(engine)
    if request.param.startswith("Python"):
        monkeypatch.setattr(CollectiveDispatch, "takes", lambda *_: False)
    settings = Settings(
        listen="127.0.0.1",
        broker="off",
        job_secret=b"secret of the test",
        engine=engine,
        shared_memory=request.param.endswith("shared memory"),
    )
    store = MemoryRendezvous()

    def connect(rank: int) -> Group:
        return Group.connect(store, rank=rank, world_size=2, settings=settings, timeout_s=SOON_S)

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        yield [stack.enter_context(closing(group)) for group in pool.map(connect, range(2))]


def exchange(pair: list[Group], others: list[Group]) -> None:
    """A message, an all-reduce of another group and its barrier get through."""
    message, received = np.arange(300_000), np.zeros(300_000, int)
    summed = [np.full(3_000_000, rank + 1, np.float32) for rank in range(2)]
    works = [pair[0].send(message, 1, timeout_s=SOON_S), pair[1].recv(received, 0, timeout_s=SOON_S)]
    for group, values in zip(others, summed, strict=True):
        works += [group.allreduce(values, timeout_s=SOON_S), group.barrier(timeout_s=SOON_S)]
    for work in works:
        work.wait()
    assert (received == message).all()
    assert all((values == 3).all() for values in summed)


def begin(group: Group, large: np.ndarray, sums: list[np.ndarray], *, timeout_s: float = 120.0) -> list[Work]:
    """What the other rank has not called: one that sends in one direction, and ten that meet there."""
    return [
        group.broadcast(large, 0, timeout_s=timeout_s),
        *(group.allreduce(one, timeout_s=timeout_s) for one in sums),
    ]


def tensors(rank: int) -> tuple[np.ndarray, list[np.ndarray]]:
    large = np.zeros(192 * MIB, np.uint8) if rank else np.arange(192 * MIB, dtype=np.uint8)
    return large, [np.full(25 * MIB // 4, rank + number, np.float32) for number in range(10)]


def test_what_a_rank_has_not_called_yet_stops_nothing_else_and_completes_when_it_has(pair: list[Group]) -> None:
    others = [group.subgroup([0, 1]) for group in pair]
    exchange(pair, others)
    calls = [tensors(rank) for rank in range(2)]
    works = begin(pair[0], *calls[0])
    with pytest.raises(TimedOutError):
        works[0].wait(3.0)  # it has sent what it may
    for _ in range(3):
        exchange(pair, others)
    for work in [*works, *begin(pair[1], *calls[1])]:
        work.wait()
    assert (calls[1][0] == calls[0][0]).all()
    for number in range(10):
        assert all((sums[number] == 1 + 2 * number).all() for _, sums in calls)
    exchange(pair, others)


@pytest.mark.parametrize("ends", ["it times out", "it is aborted", "another rank gives it up", "its group is closed"])
def test_what_is_held_back_ends_with_its_collective_and_the_group_goes_on(pair: list[Group], ends: str) -> None:
    subs = [group.subgroup([0, 1]) for group in pair]
    exchange(pair, subs)
    large, sums = tensors(0)
    works = begin(subs[0], large, sums[:3], timeout_s=3.0 if ends == "it times out" else 120.0)
    with pytest.raises(TimedOutError):
        works[0].wait(2.0)
    if ends == "it is aborted":
        subs[0].abort()
    elif ends == "another rank gives it up":
        for _ in works:
            subs[1].give_up("it has no memory")
    elif ends == "its group is closed":
        subs[0].close()
    for work in works:
        with pytest.raises((TimedOutError, CancelledError)):
            work.wait(SOON_S)
    if ends in ("it times out", "it is aborted"):
        large, sums = tensors(1)
        for work in begin(subs[1], large, sums[:3], timeout_s=SOON_S):
            with pytest.raises((TimedOutError, CancelledError)):
                work.wait()
    others = [group.subgroup([0, 1]) for group in pair] if ends == "its group is closed" else subs
    for _ in range(3):
        exchange(pair, others)
