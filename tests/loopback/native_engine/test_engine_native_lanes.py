"""Messages over several lanes to one peer: two ranks over real sockets, with a law that always finds one more worth it.

Lanes need the native engine; that others do with one is tested here, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listening_broker import ListeningBroker
from patience import LIMIT_S, wait_until

from transport import Group, MemoryRendezvous, Settings, Work
from transport.mesh.lanes import LaneLaw
from transport.wire.error_codes import WireCode

MIB = 2**20
ALWAYS = LaneLaw(
    lanes_max=3,
    window_s=0.1,
    windows=1,
    busy_share_min=0.0,
    gain_min=-1.0,
    trial_windows_max=10**6,
    loss_share_max=1.0,
    delay_s_max=1e9,
    window_full_share=1e9,
    retry_s_first=0.0,
    idle_s=3600.0,
)
"""Opens one after another whatever is measured, and keeps them."""
SIZES = [0, 1, 1000, 64 * 1024, 64 * 1024 + 1, 300_000, MIB, MIB + 1, 5 * MIB]


@contextlib.contextmanager
def ranks(*laws: LaneLaw, engine: str = "native", broker: str = "off") -> Iterator[list[Group]]:
    """Two ranks, each at an address of its own, as on two hosts."""
    store = MemoryRendezvous()
    plain = Settings(broker=broker, engine=engine, job_secret=b"secret of the test")

    def connect(rank: int) -> Group:
        settings = replace(plain, listen=f"127.0.0.{1 + rank}", lanes=laws[rank])
        return Group.connect(store, rank=rank, world_size=2, settings=settings, connect_timeout_s=60.0, timeout_s=60.0)

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(connect, range(2)))
        try:
            yield groups
        finally:
            list(pool.map(lambda group: group.close(timeout_s=10.0), groups))


@contextlib.contextmanager
def traffic(groups: list[Group]) -> Iterator[None]:
    """Keep rank 0 from ever being without messages to rank 1, until the end of the block."""
    over = threading.Event()
    block = np.zeros(300_000, "u1")

    def send() -> None:
        waiting = [groups[0].send(block, 1, tag=99) for _ in range(16)]
        while not over.is_set():
            waiting.append(groups[0].send(block, 1, tag=99))
            waiting.pop(0).wait()
        waiting.append(groups[0].send(np.zeros(1, "u1"), 1, tag=99))
        for one in waiting:
            one.wait()

    def receive() -> None:
        while len(taken(groups[1].recv(None, 0, tag=99))) > 1:
            pass

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(send), pool.submit(receive)]
        try:
            yield
        finally:
            over.set()
            for one in both:
                one.result()


def ports_in_use(groups: list[Group]) -> set[int]:
    """Of both ends of all connections, as the statistics tell: they are a moment late."""
    return {one.remote[1] for group in groups for one in group._runtime.statistics().values()}


def taken(work: Work) -> Any:
    """The tensor of a `recv`, of whatever type its sender gave it."""
    return work.wait()


def lanes(group: Group) -> tuple[int, str]:
    """How many lanes rank 0 sends over, and why."""
    return group._runtime.lanes()[1 - group.rank]


def further(group: Group) -> list[int]:
    """The connections of the further lanes."""
    return list(group._runtime._endpoint.peers.lanes(1 - group.rank))


def in_pairs(groups: list[Group], body: Callable[[Group], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(body, groups))


def exchange(groups: list[Group], *, rounds: int = 1, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Send tensors of all sizes from rank 0, with two tags, and hold against them what comes, in order of a tag."""
    random = np.random.default_rng(1)
    tensors = [random.integers(0, 256, size, dtype="u1") for _ in range(rounds) for size in random.permutation(SIZES)]
    received = [[groups[1].recv(None, 0, tag=tag) for _ in tensors] for tag in (1, 2)]
    sent = [groups[0].send(tensor, 1, tag=tag) for tensor in tensors for tag in (1, 2)]
    meanwhile()
    for works in received:
        for work, tensor in zip(works, tensors, strict=True):
            assert np.array_equal(taken(work), tensor)
    for work in sent:
        work.wait()


def test_tensors_of_all_sizes_arrive_in_order_over_three_lanes():
    with ranks(ALWAYS, ALWAYS) as groups:
        with traffic(groups):
            wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
            before = sent_over(groups[0])
            exchange(groups, rounds=4)
            wait_until(
                lambda: sum(after > before.get(one, 0) + MIB for one, after in sent_over(groups[0]).items()) == 3
            )
            wait_until(lambda: [len(further(group)) for group in groups] == [2, 2])

        def reduce(group: Group) -> float:
            ones = np.ones(3_000_000, "f4")
            group.allreduce(ones).wait()
            return float(ones.min() + ones.max())

        assert in_pairs(groups, reduce) == [4.0, 4.0]


def sent_over(group: Group) -> dict[int, int]:
    first = group._runtime._endpoint.peers.route(1 - group.rank, bulk=False)
    statistics = group._runtime.statistics()
    assert first is not None
    return {one: statistics[one].sent_bytes for one in (first, *further(group)) if one in statistics}


@pytest.mark.parametrize("who", [0, 1])
def test_what_a_lane_loses_in_mid_transfer_goes_over_the_first_one(who):
    with ranks(ALWAYS, ALWAYS) as groups, traffic(groups):
        wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
        wait_until(lambda: [len(further(group)) for group in groups] == [2, 2])
        victims = [further(group)[-1] for group in groups]
        outbox = groups[0]._runtime._endpoint._sends.outbox(1)

        def kill() -> None:
            wait_until(lambda: outbox.bytes_over(victims[0]) > 0)
            engine = groups[who]._runtime._engine
            engine.disconnect(victims[who], wire_code=WireCode.INTERNAL, reason="a test")
            wait_until(lambda: victims[0] not in further(groups[0]))

        exchange(groups, rounds=4, meanwhile=kill)
        wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))  # the law finds it worth it again
        exchange(groups)


def move(group: Group, new: str) -> None:
    """Have a rank go on from another address, as when it has noticed that its own has changed."""
    runtime, moved = group._runtime, threading.Event()
    assert runtime._moves is not None

    def begin() -> None:
        runtime._moves._move(f"127.0.0.{1 + group.rank}", new)
        moved.set()

    runtime._loop.call(begin)
    assert moved.wait(LIMIT_S)


def remotes(group: Group) -> list[str]:
    """Where the other ends of its compute connections are."""
    return [one.remote[0] for one in group._runtime.statistics().values() if not one.bulk]


@pytest.mark.parametrize("who", [0, 1])
def test_lanes_are_opened_anew_where_a_host_has_moved(who, tmp_path):
    """Of the two, rank 0 dials: so lanes move with the one that dials them, or with the one that takes them."""
    broker = ListeningBroker(tmp_path / "session.sock")
    new = f"127.0.0.{3 + who}"
    try:
        with ranks(ALWAYS, ALWAYS, broker=str(broker.path)) as groups, traffic(groups):
            wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
            wait_until(lambda: [len(further(group)) for group in groups] == [2, 2])
            before = [set(further(group)) for group in groups]
            threads = threads_of_engines()
            exchange(groups, rounds=4, meanwhile=lambda: move(groups[who], new))
            wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
            wait_until(lambda: [len(further(group)) for group in groups] == [2, 2])
            wait_until(lambda: remotes(groups[1 - who]) == [new] * 3, what=lambda: remotes(groups[1 - who]))
            assert [set(further(group)) & old for group, old in zip(groups, before, strict=True)] == [set(), set()]
            assert threads_of_engines() == threads
            exchange(groups)
            wait_until(lambda: ports_in_use(groups) <= set(broker.ports))
    finally:
        broker.close()


def threads_of_engines() -> int:
    """How many threads native engines have for the network in this process."""
    return sum(path.read_text().strip() == "hive-quic" for path in Path("/proc/self/task").glob("*/comm"))


def test_the_last_messages_of_a_rank_that_leaves_count_over_every_lane():
    with ranks(ALWAYS, ALWAYS) as groups:
        with traffic(groups):
            wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
        works = [groups[0].send(np.full(300_000, number, "u1"), 1) for number in range(12)]

        def take_and_leave() -> list[int]:
            numbers = [int(taken(groups[1].recv(None, 0))[0]) for _ in range(12)]
            groups[1].close()
            return numbers

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(take_and_leave).result() == list(range(12))
        for work in works:
            work.wait()


def test_a_lane_that_nobody_sends_over_is_closed_on_both_sides():
    law = replace(ALWAYS, idle_s=1.0)
    with ranks(law, law) as groups:
        with traffic(groups):
            wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
        wait_until(lambda: [further(group) for group in groups] == [[], []])
        wait_until(lambda: [len(group._runtime.statistics()) for group in groups] == [1, 1])
        exchange(groups)


def test_the_sockets_of_lanes_are_passed_to_the_broker_like_the_first(tmp_path):
    broker = ListeningBroker(tmp_path / "session.sock")
    try:
        with ranks(ALWAYS, ALWAYS, broker=str(broker.path)) as groups:
            plain = {(message["class"], message["role"]) for message in broker.wait_for("register", count=4)}
            assert plain == {("compute", "gradient"), ("compute", "bulk")}
            with traffic(groups):
                wait_until(lambda: lanes(groups[0])[0] == 3, what=lambda: lanes(groups[0]))
            gradients = {"class": "compute", "role": "gradient"}
            broker.wait_for("register", count=2 + 4, **gradients)
            wait_until(lambda: len(ports_in_use(groups)) == 6)
            assert ports_in_use(groups) <= set(broker.ports)
    finally:
        broker.close()


def test_a_peer_that_is_told_to_have_one_lane_refuses_more():
    with ranks(ALWAYS, replace(ALWAYS, lanes_max=1)) as groups, traffic(groups):
        wait_until(lambda: lanes(groups[0]) == (1, "could not open one: the peer has none"))
        exchange(groups)


def test_an_engine_with_one_thread_for_all_never_asks_for_a_lane():
    with ranks(ALWAYS, ALWAYS, engine="aioquic") as groups, traffic(groups):
        exchange(groups, rounds=2)
        assert [lanes(group) for group in groups] == [(1, ""), (1, "")]
        assert [len(group._runtime.statistics()) for group in groups] == [1, 1]
