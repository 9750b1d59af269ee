"""What is left of an operation that not all ranks began is in nobody's way: neither in the next operation's nor in a
later group's of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest
from engine_cases import WITH_NATIVE

from hive_qos.errors import TimedOutError
from transport import Group, MemoryRendezvous, Settings
from transport.collectives.membership import CLOSED_MAX

MORE_THAN_A_STORE = 45_000_000
"""Of float32, half of which go to the other one: 90 MB. Of messages that nobody has posted for, 64 MiB are kept."""


@pytest.fixture(params=["shared memory", "QUIC"] if WITH_NATIVE else ["QUIC"])
def pair(request: pytest.FixtureRequest) -> Iterator[list[Group]]:
    store = MemoryRendezvous()
    settings = Settings(
        listen="127.0.0.1", broker="off", job_secret=b"secret of the test", shared_memory=request.param != "QUIC"
    )

    def connect(rank: int) -> Group:
        return Group.connect(store, rank=rank, world_size=2, settings=settings, timeout_s=30.0)

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        yield [stack.enter_context(closing(group)) for group in pool.map(connect, range(2))]


def meet(pair: list[Group]) -> None:
    values = [np.ones(1_000_000, np.float32) for _ in pair]
    for work in [group.allreduce(one) for group, one in zip(pair, values, strict=True)]:
        work.wait()
    assert all((one == 2).all() for one in values)


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda world, _sub: world.give_up("it has no memory"), id="given up"),
        pytest.param(lambda _world, sub: sub.close(), id="closed"),
    ],
)
def test_more_than_a_store_of_an_operation_that_never_begins_stops_no_other(
    pair: list[Group], leave: Callable[[Group, Group], None]
) -> None:
    subs = [group.subgroup([0, 1]) for group in pair]
    meet(subs)
    begins = subs[0] if leave.__code__.co_names == ("close",) else pair[0]
    work = begins.allreduce(np.ones(MORE_THAN_A_STORE, np.float32))
    with pytest.raises(TimedOutError):
        work.wait(1.0)  # it has sent what it may
    leave(pair[1], subs[1])
    for _ in range(3):
        meet(pair)


def test_a_name_can_be_used_again_when_many_other_groups_have_been_closed(pair: list[Group]) -> None:
    for number in range(CLOSED_MAX + 3):
        name = f"g{number % (CLOSED_MAX + 2)}"
        subs = [group.subgroup([0, 1], name=name) for group in pair]
        works = [group.allreduce(np.ones(10)) for group in subs for _ in range(20)]
        works += [subs[0].send(np.ones(3), 1), subs[1].recv(np.zeros(3), 0)]
        for work in works:
            work.wait(10.0)
        for group in subs:
            group.close()
