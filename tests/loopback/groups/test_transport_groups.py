"""Groups over real engines and real sockets, ranks as threads of this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cases import need
from patience import LIMIT_S, most_of, wait_until

from hive_qos.errors import ConfigurationError, ConnectionLostError, MisuseError, PeerError, TimedOutError
from transport import FileRendezvous, Group, MemoryRendezvous, Priority, ReduceOp, Settings, TcpRendezvous
from transport.engine import NATIVE_MODULE
from transport.identity import ca_init, ca_issue, ca_revoke, load_identity

LOCAL = Settings(listen="127.0.0.1", broker="off", engine="aioquic", job_secret=b"secret of the test")


class Ranks:
    """Calls bodies with a group each, in threads, and keeps the groups for the next body."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._pool = ThreadPoolExecutor(16)

    def connect(
        self,
        size: int,
        settings: Settings | list[Settings] = LOCAL,
        rendezvous: Any = None,
        *,
        connect_timeout_s: float = LIMIT_S,
    ) -> list[Any]:
        store = rendezvous or MemoryRendezvous()
        each = settings if isinstance(settings, list) else [settings] * size

        def one(rank: int) -> Any:
            try:
                return Group.connect(
                    store,
                    rank=rank,
                    world_size=size,
                    settings=each[rank],
                    connect_timeout_s=connect_timeout_s,
                    timeout_s=60.0,
                )
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return error

        results = list(self._pool.map(one, range(size)))
        self.groups += [result for result in results if isinstance(result, Group)]
        return results

    def run(self, body: Callable[[Group], Any]) -> list[Any]:
        return list(self._pool.map(body, self.groups))

    def close(self) -> None:
        list(self._pool.map(lambda group: group.close(), self.groups))
        self._pool.shutdown()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()
    wait_until(lambda: not own_threads(), what=own_threads)  # told to end, but perhaps not yet over


def own_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("hive-transport", "hive-aioquic"))]


def every_collective(ranks: Ranks, size: int) -> None:
    """All of them, each held against what it should be; of the all-reduced tensor all ranks have the same bits."""
    expected = sum(range(1, size + 1))

    def body(group: Group) -> bytes:
        rank = group.rank
        tensor = np.full(200_003, rank + 1, "f4")
        group.allreduce(tensor).wait()
        assert (tensor == expected).all()
        copied = np.full(70_001, rank, "f8")
        group.broadcast(copied, size - 1).wait()
        assert (copied == size - 1).all()
        outputs = np.zeros((size, 11), "i8")
        group.all_gather(outputs, np.full(11, rank)).wait()
        assert (outputs == np.arange(size)[:, None]).all()
        part = np.zeros(5, "i4")
        group.reduce_scatter(part, np.repeat(np.arange(size, dtype="i4"), 5), ReduceOp.MAX).wait()
        assert (part == rank).all()
        group.scatter(part, [np.full(5, i, "i4") for i in range(size)] if rank == 0 else None, 0).wait()
        assert (part == rank).all()
        inputs = [np.full(i + rank, 10 * rank + i) for i in range(size)]
        received = [np.zeros(rank + i, dtype=int) for i in range(size)]
        group.all_to_all(received, inputs).wait()
        assert all((one == 10 * i + rank).all() for i, one in enumerate(received))
        group.reduce(tensor, 0).wait()
        group.gather(np.zeros(size) if rank == 0 else None, np.ones(1), 0).wait()
        group.barrier().wait()
        return b"" if rank == 0 else tensor.tobytes()

    assert len(set(ranks.run(body))) == min(size, 2)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_collective(ranks, size):
    ranks.connect(size)
    every_collective(ranks, size)


def test_tensors_of_messages_are_let_go_when_their_operations_have_ended(ranks):
    """By counting references: training loops that turn Python's garbage collector off keep no memory by it."""
    ranks.connect(2)
    elems = (1_000, 100_000, 1_000_000)  # in the head, sent unasked, asked for

    def send(group: Group, count: int) -> weakref.ref[Any]:
        tensor = np.ones(count, "f4")
        group.send(tensor, 1).wait()
        return weakref.ref(tensor)

    def receive(group: Group, into: Any) -> weakref.ref[Any]:
        work = group.recv(into, 0)
        found: Any = work.wait()
        work.cancel()  # what has ended stays as it is
        return weakref.ref(found if into is None else into)

    def body(group: Group) -> list[weakref.ref[Any]]:
        each = [(count, into) for count in elems for into in (True, False)]
        if group.rank == 0:
            return [send(group, count) for count, _ in each]
        return [receive(group, np.zeros(count, "f4") if into else None) for count, into in each]

    gc.disable()
    try:
        for kept in ranks.run(body):
            wait_until(lambda: all(one() is None for one in kept), what=lambda: [one() is None for one in kept])  # noqa: B023 - at once
    finally:
        gc.enable()


def test_outputs_may_lie_in_inputs_and_inputs_in_outputs(ranks):
    """So large that what arrives would come before all is sent."""
    size, length = 3, 300_000
    ranks.connect(size)
    every = np.arange(size * length, dtype="f4") % 1000

    def body(group: Group) -> None:
        rank = group.rank
        own = slice(rank * length, (rank + 1) * length)
        for at in (0, rank * length, length // 2):
            there = slice(at, at + length)
            summed, gathered = every + rank, np.zeros_like(every)
            group.reduce_scatter(summed[there], summed).wait(LIMIT_S)
            assert np.array_equal(summed[there], size * every[own] + 3)
            gathered[there] = every[own]
            group.all_gather(gathered, gathered[there]).wait(LIMIT_S)
            assert np.array_equal(gathered, every)
        parts = np.split(every + rank, size)
        group.all_to_all(parts, parts).wait(LIMIT_S)
        assert all(np.array_equal(part, every[own] + origin) for origin, part in enumerate(parts))
        for root, at in ((0, length // 2), (size - 1, 3 * length // 2)):
            there = slice(at, at + length)
            whole = every + rank
            group.gather(whole if rank == root else None, whole[there], root).wait(LIMIT_S)
            if rank == root:
                assert np.array_equal(whole, np.concatenate([every[there] + origin for origin in range(size)]))
            whole = every.copy()
            out = whole[there] if rank == root else np.empty(length, "f4")
            group.scatter(out, whole if rank == root else None, root).wait(LIMIT_S)
            assert np.array_equal(out, every[own])

    ranks.run(body)


@pytest.mark.parametrize("both", [("aioquic", "native")], ids="-".join)
def test_every_collective_between_ranks_of_both_engines(ranks, chosen_engine, both):
    need(*both)
    names = [chosen_engine, *(name for name in both if name != chosen_engine)]
    ranks.connect(3, [dataclasses.replace(LOCAL, engine=names[rank % 2]) for rank in range(3)])
    assert [group._runtime._engine.name for group in ranks.groups] == [names[rank % 2] for rank in range(3)]
    every_collective(ranks, 3)


def test_a_tensor_larger_than_every_window_arrives(ranks):
    ranks.connect(2)
    size = 9 * 2**20

    def body(group: Group) -> None:
        if group.rank == 0:
            group.send(np.arange(size // 4, dtype="i4"), 1).wait()
        else:
            received = group.recv(None, 0).wait()
            assert isinstance(received, np.ndarray)
            assert (received == np.arange(size // 4)).all()

    ranks.run(body)


def test_messages_keep_their_order_for_each_tag_and_anybody_is_served(ranks):
    ranks.connect(3)

    def body(group: Group) -> list[int]:
        if group.rank:
            works = [group.send(np.array([10 * group.rank + i]), 0, tag=i % 2) for i in range(6)]
            for work in works:
                work.wait()
            group.send(np.zeros(50_000), 0, tag=5).wait()
            return []
        received = [int(np.asarray(group.recv(None, peer, tag).wait())[0]) for peer in (2, 1) for tag in (1, 0, 1)]
        works = [group.recv(np.empty(50_000), None, tag=5) for _ in range(2)]
        for work in works:
            work.wait()
        assert {work.source for work in works} == {1, 2}
        return received

    assert ranks.run(body)[0] == [21, 20, 23, 11, 10, 13]


def test_bulk_goes_over_a_connection_of_its_own(ranks):
    ranks.connect(2)

    def body(group: Group) -> None:
        tensor = np.ones(400_000, "f4")
        if group.rank == 0:
            group.send(tensor, 1, priority=Priority.BULK).wait()
        else:
            group.recv(tensor, 0).wait()

    ranks.run(body)
    runtime = ranks.groups[0]._runtime
    wait_until(lambda: len(runtime.statistics()) == 2)  # they are at most 100 ms old
    assert sorted(one.bulk for one in runtime.statistics().values()) == [False, True]


def test_a_mismatched_message_is_named_and_later_ones_still_arrive(ranks):
    ranks.connect(2)

    def body(group: Group) -> None:
        if group.rank == 0:
            for tensor in (np.zeros(7, "i4"), np.zeros(90_000, "f8"), np.zeros(2, "f4"), np.ones(3, "f4")):
                group.send(tensor, 1).wait()
            return
        with pytest.raises(PeerError, match=r"int32\[7\] where float32\[3\]"):
            group.recv(np.zeros(3, "f4"), 0).wait()
        with pytest.raises(PeerError, match=r"float64\[90000\] where float32\[3\]"):
            group.recv(np.zeros(3, "f4"), 0).wait()
        with pytest.raises(PeerError, match=r"float32\[2\] where float32\[3\]"):
            group.recv(np.zeros(3, "f4"), 0).wait()
        last = np.zeros(3, "f4")
        group.recv(last, 0).wait()
        assert last.tolist() == [1, 1, 1]

    ranks.run(body)


def test_a_broken_connection_is_made_again_in_the_middle_of_a_collective(ranks):
    ranks.connect(2)
    runtime = ranks.groups[0]._runtime

    def broken_in_the_middle() -> bool:
        tensors = [np.full(1_500_000, rank + 1, "f4") for rank in range(2)]
        works = [group.allreduce(tensor) for group, tensor in zip(ranks.groups, tensors, strict=True)]
        wait_until(lambda: works[0].bytes_done, pause_s=0.002)
        connection = runtime._endpoint.peers.route(1, bulk=False)
        middle = not works[0].done()
        runtime._engine.disconnect(connection, wire_code=0, reason="a test")
        for work in works:
            work.wait(LIMIT_S)
        assert all((tensor == 3).all() for tensor in tensors)
        wait_until(lambda: runtime._endpoint.peers.route(1, bulk=False) not in (None, connection))
        return middle

    most_of(broken_in_the_middle, lambda middle: middle)  # after a stall it may be over before


def test_a_rank_that_leaves_is_known_by_its_goodbye(ranks):
    ranks.connect(3)
    work = ranks.groups[0].recv(None, 2, timeout_s=60.0)
    ranks.groups[2].close()
    with pytest.raises(ConnectionLostError, match=r"rank 2 .*has left the group"):
        work.wait(LIMIT_S)
    with pytest.raises(ConnectionLostError, match=r"rank 2 .*has left the group"):
        ranks.groups[1].barrier(timeout_s=60.0).wait(LIMIT_S)


def test_the_loss_of_a_rank_is_told_at_once_and_to_who_asks_later(ranks):
    ranks.connect(2)
    first, second = ranks.groups
    wait_until(lambda: 0.0 < first.round_trips_s().get(1, 0.0) < LIMIT_S)
    told, later = threading.Event(), threading.Event()
    first.call_on_loss(told.set)
    assert not told.is_set()
    second.close()
    assert told.wait(LIMIT_S)
    assert 1 in first.lost_ranks()
    first.call_on_loss(later.set)
    assert later.is_set()


def test_who_leaves_after_its_part_of_a_small_collective_has_sent_that_part(ranks):
    need("native")

    def body(group: Group) -> list[float]:
        tensor = np.ones(4)
        for _ in range(3):
            group.allreduce(tensor).wait(LIMIT_S)
        group.close()
        return tensor.tolist()

    for _ in range(5):
        ranks.connect(2, dataclasses.replace(LOCAL, engine="native"))
        assert ranks.run(body) == [[8.0] * 4] * 2
        ranks.groups.clear()


def test_certificates_of_a_cluster_connect_ranks_that_share_one(ranks, tmp_path):
    ca_init(tmp_path / "ca")
    node = ca_issue(tmp_path / "ca", "node-a", out=tmp_path)
    other = ca_issue(tmp_path / "ca", "node-b", out=tmp_path)
    settings = [
        dataclasses.replace(
            LOCAL, ca=str(tmp_path / "ca" / "ca.crt"), certificate=str(files.certificate), key=str(files.key)
        )
        for files in (node, node, other)
    ]
    ranks.connect(3, settings)

    def body(group: Group) -> float:
        tensor = np.full(10_000, group.rank + 1.0)
        group.allreduce(tensor).wait()
        return float(tensor[0])

    assert ranks.run(body) == [6.0, 6.0, 6.0]


@pytest.mark.parametrize("what", ["another job", "revoked"])
def test_a_rank_whose_certificate_is_for_another_job_or_revoked_is_refused(ranks, tmp_path, monkeypatch, what):
    """It says that it is of this job: what it says of itself is not enough."""
    ca = tmp_path / "ca"
    ca_init(ca)
    good = ca_issue(ca, "good", jobs=["training"], out=tmp_path)
    bad = ca_issue(ca, "bad", jobs=["other" if what == "another job" else "training"], out=tmp_path)
    if what == "revoked":
        ca_revoke(ca, "bad")
    (tmp_path / "theirs.crt").write_bytes((ca / "ca.crt").read_bytes())  # no list beside it
    mine = dataclasses.replace(
        LOCAL, job="training", ca=str(ca / "ca.crt"), certificate=str(good.certificate), key=str(good.key)
    )
    theirs = dataclasses.replace(
        mine, ca=str(tmp_path / "theirs.crt"), certificate=str(bad.certificate), key=str(bad.key)
    )

    def load(*, certificate, job, **files):
        """As ever for who is honest; a liar does not look at what its own certificate is for."""
        honest = certificate == mine.certificate
        return load_identity(certificate=certificate, job=job if honest else None, **files)

    monkeypatch.setattr("transport.bootstrap.rank_info.load_identity", load)
    results = ranks.connect(2, [mine, theirs], connect_timeout_s=5.0)
    assert not ranks.groups
    assert isinstance(results[0], PeerError | TimedOutError), results
    assert ("certificate is for 'other'" if what == "another job" else "has been revoked") in str(results[0])


@pytest.mark.parametrize("what", ["another CA", "another role", "one without", "another secret", "no secret"])
def test_a_rank_that_is_not_who_it_should_be_is_refused(ranks, tmp_path, what):
    settings = [LOCAL, LOCAL]
    if what in ("another CA", "another role", "one without"):
        files = []
        for name in ("a", "b"):
            ca_init(tmp_path / name)
            role = "broker" if what == "another role" and name == "b" else "job"
            authority = "a" if what == "another role" else name
            issued = ca_issue(tmp_path / authority, f"node-{name}", role=role, addresses=["127.0.0.1"], out=tmp_path)
            files.append((tmp_path / "a" / "ca.crt" if authority == "a" else tmp_path / "b" / "ca.crt", issued))
        settings = [
            dataclasses.replace(LOCAL, ca=str(ca), certificate=str(issued.certificate), key=str(issued.key))
            for ca, issued in files
        ]
        if what == "one without":
            settings[1] = LOCAL
    elif what == "another secret":
        settings[1] = dataclasses.replace(LOCAL, job_secret=b"another secret of the test")
    else:
        settings[1] = dataclasses.replace(LOCAL, job_secret=b"")
    # A wrong secret is found in the other's entry; a certificate when dialling, for as long as both may try.
    limits_s = {"another secret": LIMIT_S, "no secret": 5.0}
    results = ranks.connect(2, settings, connect_timeout_s=limits_s.get(what, 2.0))
    assert not ranks.groups
    if what == "another role":
        assert isinstance(results[1], ConfigurationError), "its own certificate is what is wrong"
        assert isinstance(results[0], PeerError)
        return
    assert all(isinstance(result, PeerError | TimedOutError) for result in results), results
    if "secret" in what:
        assert "HIVE_JOB_SECRET" in str(results[0])


@pytest.mark.parametrize("odd", [0, 1])
def test_with_another_ca_both_ranks_know_why_long_before_their_time_is_over(ranks, tmp_path, odd):
    files = []
    for name in ("a", "b"):
        ca_init(tmp_path / name)
        files.append((tmp_path / name / "ca.crt", ca_issue(tmp_path / name, f"node-{name}", out=tmp_path)))
    settings = [
        dataclasses.replace(LOCAL, ca=str(ca), certificate=str(issued.certificate), key=str(issued.key))
        for ca, issued in (files[odd], files[1 - odd])
    ]
    server = TcpRendezvous("127.0.0.1:0", serve=True)
    client = TcpRendezvous(f"127.0.0.1:{server.port}", serve=False)
    began_s = time.monotonic()
    results = ranks.connect(2, settings, client, connect_timeout_s=600.0)
    assert time.monotonic() - began_s < LIMIT_S
    assert all(isinstance(result, PeerError) for result in results), results
    assert any("certificate" in str(result) for result in results), results
    server.close()


def test_an_engine_that_is_not_there_is_known_to_both_ranks_at_once(ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, NATIVE_MODULE, None)
    settings = [dataclasses.replace(LOCAL, engine=name) for name in ("aioquic", "native")]
    results = ranks.connect(2, settings, connect_timeout_s=600.0)
    assert str(results[1]).startswith("[configuration] HIVE_ENGINE = 'native': it is not installed here")
    assert str(results[0]).startswith("[peer] peer rank 1: it gave up connecting: [configuration] HIVE_ENGINE")


def test_a_rank_that_does_not_come_is_named(ranks):
    began_s = time.monotonic()
    with pytest.raises(TimedOutError, match="rank 1"):
        Group.connect(MemoryRendezvous(), rank=0, world_size=3, settings=LOCAL, connect_timeout_s=0.3)
    assert time.monotonic() - began_s < LIMIT_S / 2  # without its argument it waits for a minute or more


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_stores_for_scripts_without_torch(ranks, tmp_path: Path, kind):
    if kind == "file":
        ranks.connect(2, rendezvous=FileRendezvous(tmp_path / "meet"))
    else:
        server = TcpRendezvous("127.0.0.1:0", serve=True)
        client = TcpRendezvous(f"127.0.0.1:{server.port}", serve=False)
        with pytest.raises(TimedOutError, match="nothing"):
            client.get("nothing", 0.05)
        ranks.connect(2, rendezvous=client)
        server.close()
    ranks.run(lambda group: group.barrier().wait())
    assert len(ranks.groups) == 2


def test_all_sockets_take_their_ports_from_the_range_and_the_operator_hears_where_that_is_too_small(ranks: Ranks):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((LOCAL.listen, 0))
        port = taken.getsockname()[1]
        settings = dataclasses.replace(LOCAL, ports=range(port, port + 12))
        ranks.connect(2, settings=settings)
        used = [
            port
            for group in ranks.groups
            for one in group._runtime._endpoint.peers.own
            for port in (one.port, one.bulk_port)
        ]
        assert len(set(used)) == 4
        assert set(used) < set(settings.ports)
        assert port not in used
        small = dataclasses.replace(LOCAL, ports=range(port, port + 2))
        with pytest.raises(ConfigurationError, match=f"HIVE_PORTS = '{port}-{port + 1}': at 127.0.0.1 all of them"):
            Group.connect(MemoryRendezvous(), rank=0, world_size=1, settings=small)


def test_a_group_that_was_closed_takes_no_more_calls():
    group = Group.connect(MemoryRendezvous(), rank=0, world_size=1, settings=LOCAL)
    group.close()
    with pytest.raises(MisuseError):
        group.barrier()


def test_what_a_rank_published_in_an_earlier_attempt_is_not_taken_for_this_one():
    begun = threading.Event()

    class Slow(MemoryRendezvous):
        def set(self, key: str, value: bytes) -> None:
            super().set(key, value)
            if key.endswith("/run"):
                begun.set()
                time.sleep(0.3)

    store = Slow()
    with pytest.raises(TimedOutError):
        Group.connect(store, rank=0, world_size=2, settings=LOCAL, connect_timeout_s=0.5)
    begun.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Group.connect, store, rank=0, world_size=2, settings=LOCAL)
        assert begun.wait(LIMIT_S)
        groups = [Group.connect(store, rank=1, world_size=2, settings=LOCAL), first.result(LIMIT_S)]
    for group in groups:
        group.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_stops_to_wait_for_the_others_ends_at_once_and_may_try_again(rank):
    store, threads = MemoryRendezvous(), set(threading.enumerate())

    def runs() -> bytes | None:
        with contextlib.suppress(TimedOutError):
            return store.get("hive/default/run", 0.0)
        return None

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Group.connect_async(store, rank=rank, world_size=2, settings=LOCAL), 0.3)
        await both()

    async def both() -> None:
        former = runs()
        connecting = []
        for one in range(2):
            connect = Group.connect_async(store, rank=one, world_size=2, settings=LOCAL)
            connecting.append(asyncio.ensure_future(connect))
            await asyncio.to_thread(wait_until, lambda: runs() != former)  # rank 0 has begun anew
        groups = await asyncio.gather(*connecting)
        await asyncio.gather(*(group.barrier() for group in groups))
        for group in groups:
            group.close()

    began_s = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began_s < 30, "connect_timeout_s is 60"
    for wrong in ("a|b", "x" * 100):
        with pytest.raises(MisuseError, match="a group's name has at most"):
            Group.connect(store, rank=0, world_size=1, name=wrong, settings=LOCAL)
    wait_until(lambda: not {one for one in set(threading.enumerate()) - threads if one.name.startswith("hive")})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda group, x: group.send(x, 1, priority="bulk"), "priority is 'bulk': it is one of transport.Priority"),
        (lambda group, x: group.send(x, "1"), "ranks 0 to 1, not '1'"),
        (lambda group, x: group.send(x, 1.0), "ranks 0 to 1, not 1.0"),
        (lambda group, x: group.send(x, 1, 1.5), "a tag is a number from 0 to .*, not 1.5"),
        (lambda group, x: group.recv(x, 1, "a"), "a tag is a number from 0 to .*, not 'a'"),
        (lambda group, x: group.recv(x, 1, timeout_s=float("nan")), "timeout_s is nan"),
        (lambda group, x: group.recv(x, 1, timeout_s=-1), "timeout_s is -1"),
        (lambda group, x: group.broadcast(x, 0.0), "ranks 0 to 1, not 0.0"),
        (lambda group, x: group.allreduce(x, "mean"), "'mean' is no reduction: .* ReduceOp.MEAN"),
        (lambda group, x: group.reduce_scatter(x[:1], x, "sum"), "'sum' is no reduction"),
        (lambda group, x: group.allreduce(x, priority=3), "priority is 3"),
        (lambda group, _: group.subgroup([0, "1"]), "distinct ranks below 2"),
        (lambda group, _: group.subgroup([0, 1], name=5), "a group's name has"),
        (lambda *_: Group.connect("host:1", rank=0, world_size=1, settings=LOCAL), "rendezvous is 'host:1'"),  # type: ignore[arg-type]  # the point
        (lambda *_: Group.connect(MemoryRendezvous(), rank="0", world_size=1, settings=LOCAL), "rank is '0'"),  # type: ignore[arg-type]  # the point
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_and_the_group_goes_on(
    ranks: Ranks, call: Callable[..., object], reason: str
) -> None:
    groups = ranks.connect(2)
    with pytest.raises(MisuseError, match=reason):
        call(groups[0], np.ones(2, np.float32))
    sums = [np.ones(2, np.float32) for _ in groups]
    for work in [group.allreduce(one) for group, one in zip(groups, sums, strict=True)]:
        work.wait()
    assert [one.tolist() for one in sums] == [[2.0, 2.0]] * 2
