"""The native executor beside the Python one, over real sockets: the same bits, errors with names, no event a chunk."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from patience import LIMIT_S, wait_until

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError, TimedOutError
from transport import Group, MemoryRendezvous, Priority, ReduceOp, Settings
from transport.collectives.calls import allreduce
from transport.collectives.codecs import Codec, encoded_bytes
from transport.collectives.partial_input import PartialInput
from transport.mesh.endpoint import Endpoint
from transport.tensors import TensorView

pytest.importorskip("hive_qos_native", reason="the native engine is not built here")

NATIVE = Settings(
    listen="127.0.0.1", broker="off", engine="native", job_secret=b"secret of the test", chunk_bytes=8 * 1024
)
PYTHON = replace(NATIVE, engine="aioquic")
MIXED = [NATIVE, PYTHON, NATIVE]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64"]
SEEDS = range(40)
ELEMS = 30_000
"""Of a compressed all-reduce: a shard is several chunks."""
SHARD = ELEMS // 3


class World:
    """Ranks as threads of this process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._groups: list[Group] = []

    def connect(self, settings: list[Settings]) -> list[Group]:
        store = MemoryRendezvous()

        def one(rank: int) -> Group:
            size = len(settings)
            return Group.connect(
                store,
                rank=rank,
                world_size=size,
                settings=settings[rank],
                connect_timeout_s=LIMIT_S,
                timeout_s=60.0,
            )

        groups = list(self._pool.map(one, range(len(settings))))
        self._groups += groups
        return groups

    def close(self) -> None:
        list(self._pool.map(lambda group: group.close(), self._groups))
        self._pool.shutdown()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def random_calls(groups: list[Group], seed: int) -> list[bytes]:
    """One random collective on every rank, of which the seed says everything; the bytes that each rank then has."""
    random = np.random.default_rng(seed)
    size = len(groups)
    dtype = DTYPES[random.integers(len(DTYPES))]
    item = {"bfloat16": 2, "bool": 1}.get(dtype) or np.dtype(dtype).itemsize
    elems = int(random.choice([0, 1, 17, 5000, 40_000]))
    ops = [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    op = ops[random.integers(1 if dtype in ("bool", "complex64") else len(ops))]
    root = int(random.integers(size))
    priority = Priority(int(random.integers(1, 5)))

    def tensors(count: int = 1) -> list[list[Any]]:
        rows = random.integers(0, 2 if dtype == "bool" else 256, (size, count, elems * item), np.uint8)
        if "float" in dtype or "complex" in dtype:
            rows[..., item - 1 :: item] &= 0x3F  # numbers of no great exponent: sums of NaN prove nothing
        return [[TensorView(row.copy().data, dtype=dtype, shape=(elems,)) for row in of_rank] for of_rank in rows]

    mine, others = tensors(), tensors(size)
    operation = random.integers(7)
    works = []
    for rank, group in enumerate(groups):
        own, parts = mine[rank][0], others[rank]
        match operation:
            case 0:
                work = group.allreduce(own, op, priority=priority)
            case 1:
                work = group.broadcast(own, root, priority=priority)
            case 2:
                work = group.reduce(own, root, op, priority=priority)
            case 3:
                work = group.all_gather(parts, own, priority=priority)
            case 4:
                work = group.reduce_scatter(own, parts, op, priority=priority)
            case 5:
                work = group.all_to_all(parts, tensors(size)[rank], priority=priority)
            case _:
                work = group.barrier()
        works.append(work)
    for work in works:
        work.wait(LIMIT_S)
        assert work.bytes_done == work.bytes_total, work
    return [
        b"".join(bytes(view.data) for view in (*mine[rank], *others[rank]))
        for rank in range(size)
        if operation != 2 or rank == root
    ]


def test_both_executors_give_the_same_bits_also_in_one_group(world):
    mixed, python, native = (world.connect(one) for one in (MIXED, [PYTHON] * 3, [NATIVE] * 3))
    for seed in SEEDS:
        wanted = random_calls(python, seed)
        assert random_calls(mixed, seed) == wanted, seed
        assert random_calls(native, seed) == wanted, seed


def test_python_hears_of_a_collective_and_not_of_its_chunks(world, monkeypatch):
    groups = world.connect([NATIVE, NATIVE])
    heard: Counter[str] = Counter()
    handle = Endpoint._handle

    def count(self: Endpoint, event: Any) -> None:
        heard[type(event).__name__] += 1
        handle(self, event)

    monkeypatch.setattr(Endpoint, "_handle", count)
    tensors = [np.ones(1 << 18, np.float32) for _ in groups]  # 128 chunks
    works = [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait(LIMIT_S)
    assert all((tensor == 2).all() for tensor in tensors)
    # What comes before this rank has begun is told, because nobody knows yet whether it is of the right call.
    told = heard.pop("UnexpectedMessage", 0)
    assert heard.pop("CollectiveEnded") in (2, 4), "the first one has an agreement on links beside it"
    assert not heard
    assert told < 128


def error_of(work: Any) -> HiveError:
    with pytest.raises(HiveError) as caught:
        work.wait(LIMIT_S)
    return caught.value


@pytest.mark.parametrize("settings", [[NATIVE] * 3, MIXED], ids=["alike", "mixed"])
def test_ranks_that_call_different_things_are_named(world, settings):
    groups = world.connect(settings)
    sizes = [4000, 4000, 5000]
    works = [group.allreduce(np.ones(size, np.float32)) for group, size in zip(groups, sizes, strict=True)]
    errors = [error_of(work) for work in works]
    assert all(isinstance(error, PeerError) for error in errors), errors
    assert all(re.search("rank[ -][012]", str(error)) for error in errors), errors
    tensors = [np.ones(10, np.float32) for _ in groups]  # and they go on together
    for work in [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]:
        work.wait(LIMIT_S)
    assert all((tensor == 3).all() for tensor in tensors)


def test_a_call_that_a_message_has_refuted_before_it_begins_borrows_no_tensor(world):
    groups = world.connect([NATIVE] * 2)
    early = groups[0].allreduce(np.ones(40_000, np.float32))
    in_flight = groups[1]._runtime._in_flight
    wait_until(lambda: in_flight._early, what=lambda: "a message of rank 0 has come")
    lent = bytearray(200_000)
    error = error_of(groups[1].allreduce(TensorView(memoryview(lent), dtype="float32", shape=(50_000,))))
    assert "rank 0 called allreduce sum of 40000 float32" in str(error)
    del error
    wait_until(lambda: resized(lent), what=lambda: "the tensor is lent no more")
    assert isinstance(error_of(early), PeerError)


def test_a_rank_that_leaves_is_named_and_the_tensors_are_given_back(world):
    groups = world.connect([NATIVE] * 3)
    lent = [bytearray(4_000_000) for _ in groups[:2]]
    works = [group.allreduce(TensorView.of(one, writable=True)) for group, one in zip(groups, lent, strict=False)]
    with pytest.raises(BufferError):
        lent[0].append(0)
    groups[2].close()
    for work, one in zip(works, lent, strict=True):
        error = error_of(work)
        assert isinstance(error, ConnectionLostError | CancelledError), error
        assert "2" in str(error)
        del error
        wait_until(lambda one=one: resized(one), what=lambda: "the tensor is lent no more")


def resized(one: bytearray) -> bool:
    try:
        one.append(0)
    except BufferError:
        return False
    return True


def test_connections_that_are_lost_in_the_middle_lose_nothing(world):
    groups = world.connect([replace(NATIVE, reconnect_s=LIMIT_S)] * 3)
    tensors = [np.full(1 << 22, rank + 1, np.float32) for rank in range(3)]
    works = [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    cut = 0
    for rank in (0, 1, 2, 0):
        runtime = groups[rank]._runtime
        before = works[rank].bytes_done
        wait_until(lambda: works[rank].done() or works[rank].bytes_done > before)  # noqa: B023 - called in this turn
        for connection in runtime.statistics():
            runtime._engine.disconnect(connection, wire_code=0, reason="a test")
            cut += not works[rank].done()
    for work in works:
        work.wait(LIMIT_S)
    assert all((tensor == 6).all() for tensor in tensors)
    assert cut


def test_a_rank_that_does_not_come_is_named_when_the_time_is_over(world):
    groups = world.connect([NATIVE] * 3)
    works = [group.allreduce(np.ones(100_000, np.float32), timeout_s=0.5) for group in groups[:2]]
    errors = [error_of(work) for work in works]
    assert any(isinstance(error, TimedOutError) and "waiting for rank" in str(error) for error in errors), errors
    timed_out = [str(error) for error in errors if isinstance(error, TimedOutError)]
    assert all("2" in said.partition("waiting for rank")[2] for said in timed_out), timed_out


def test_closing_ends_what_runs(world):
    groups = world.connect([NATIVE] * 2)
    work = groups[0].allreduce(np.ones(100_000, np.float32))
    groups[0].close()
    assert isinstance(error_of(work), CancelledError)


def all_reduces(groups: list[Group], compression: str) -> list[bytes]:
    """Three steps with error feedback, from values that are the same for each; what all ranks then have."""
    results = []
    for step in range(3):
        random = np.random.default_rng(step)
        tensors = [random.standard_normal(ELEMS).astype(np.float32) for _ in groups]
        wanted = np.mean(tensors, axis=0)
        works = [
            group.allreduce(tensor, ReduceOp.MEAN, compression=compression, feedback="gradient")
            for group, tensor in zip(groups, tensors, strict=True)
        ]
        for work in works:
            work.wait(LIMIT_S)
            assert work.bytes_done == work.bytes_total
        assert len({tensor.tobytes() for tensor in tensors}) == 1
        assert np.abs(tensors[0] - wanted).max() < 1.5
        results.append(tensors[0].tobytes())
    return results


@pytest.mark.parametrize("compression", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize(("size", "algorithm"), [(2, "direct"), (3, "direct"), (3, "exchange")])
def test_both_executors_encode_to_the_same_bits_also_in_one_group(world, compression, size, algorithm):
    def results(settings: list[Settings]) -> list[bytes]:
        return all_reduces(world.connect([replace(one, algorithm=algorithm) for one in settings[:size]]), compression)

    python = results([PYTHON] * 3)
    assert results([NATIVE] * 3) == python
    assert results(MIXED) == python


def encoded_results(groups: list[Group], compression: str) -> list[bytes]:
    """Two steps of the other collectives that encode; what each rank then has."""
    random, size, results = np.random.default_rng(5), len(groups), []
    for _ in range(2):
        tensors = [random.standard_normal(ELEMS).astype(np.float32) for _ in groups]
        shards = [np.empty(ELEMS // size, np.float32) for _ in groups]
        gathered = [np.empty(size * ELEMS, np.float32) for _ in groups]
        works = []
        for group, tensor, shard, whole in zip(groups, tensors, shards, gathered, strict=True):
            parts = tensor[: ELEMS // size * size]
            works.append(group.all_gather(whole, tensor, compression=compression))
            works.append(group.reduce_scatter(shard, parts, compression=compression, feedback="scattered"))
        for work in works:
            work.wait(LIMIT_S)
            assert work.bytes_done == work.bytes_total
        for work in [
            group.reduce(one, 1, compression=compression, feedback="reduced")
            for group, one in zip(groups, tensors, strict=True)
        ]:
            work.wait(LIMIT_S)
        assert len({one.tobytes() for one in gathered}) == 1
        results += [one.tobytes() for one in (*gathered, *shards, tensors[1])]
    return results


@pytest.mark.parametrize("compression", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("size", [2, 3])
def test_both_executors_encode_what_is_gathered_scattered_and_reduced_to_the_same_bits(world, compression, size):
    def results(settings: list[Settings]) -> list[bytes]:
        # Left to choose, groups that measure their links differently take different ways, which give different bits.
        groups = world.connect([replace(one, algorithm="direct") for one in settings[:size]])
        return encoded_results(groups, compression)

    python = results([PYTHON] * 3)
    assert results([NATIVE] * 3) == python
    assert results(MIXED) == python


@pytest.mark.parametrize("compression", ["bfloat16", "int8", "int4"])
def test_the_bytes_that_are_sent_are_those_that_were_reckoned(world, compression):
    groups = world.connect([replace(NATIVE, algorithm="direct")] * 3)
    tensors = [np.ones(ELEMS, np.float32) for _ in groups]
    works = [group.allreduce(tensor, compression=compression) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait(LIMIT_S)
    codec = Codec.named(compression)
    # Each rank sends and receives two shards' contributions and two ranks' results; each chunk ends a block.
    exact = 8 * encoded_bytes(SHARD, codec)
    assert all(exact <= work.bytes_done <= 1.01 * exact for work in works), (exact, works)


def test_what_is_small_or_no_float32_or_no_sum_is_exact(world):
    groups = world.connect([NATIVE] * 2)
    cases = [
        (np.arange(100, dtype=np.float32) / 3, ReduceOp.SUM),
        (np.arange(ELEMS, dtype=np.float64) / 3, ReduceOp.SUM),
        (np.arange(ELEMS, dtype=np.float32) / 3, ReduceOp.MAX),
    ]
    for values, op in cases:
        tensors = [values.copy() for _ in groups]
        for work in [group.allreduce(one, op, compression="int4") for group, one in zip(groups, tensors, strict=True)]:
            work.wait(LIMIT_S)
        assert np.array_equal(tensors[0], values if op is ReduceOp.MAX else 2 * values)


def test_input_that_is_still_on_its_way_is_sent_as_it_comes_and_the_bits_are_the_same(world: World) -> None:
    # Of one algorithm: the first call measures the links, and the second could go another way, which has other bits.
    groups = world.connect([replace(one, algorithm="direct") for one in MIXED])
    whole = [np.random.default_rng(rank).standard_normal(ELEMS).astype("f4") for rank in range(3)]
    expected = [one.copy() for one in whole]
    for work in [group.allreduce(one) for group, one in zip(groups, expected, strict=True)]:
        work.wait(LIMIT_S)
    tensors = [np.full(ELEMS, np.nan, "f4") for _ in groups]
    partials = [PartialInput(one.ctypes.data, one.nbytes, ready_bytes=0) for one in tensors]
    works = []
    for group, tensor, partial in zip(groups, tensors, partials, strict=True):
        call = allreduce(group.site, tensor, ReduceOp.SUM)
        works += group.start([replace(call, partial=partial)])
    for first, end in itertools.pairwise([0, 1, ELEMS // 2, ELEMS - 1, ELEMS]):
        assert not any(work.done() for work in works)
        for tensor, partial, values in zip(tensors, partials, whole, strict=True):
            tensor[first:end] = values[first:end]
            partial.reached(4 * end)
        if end == ELEMS - 1:
            wait_until(lambda: all(work.bytes_done for work in works))
    for work, tensor in zip(works, tensors, strict=True):
        work.wait(LIMIT_S)
        assert tensor.tobytes() == expected[0].tobytes()


def test_input_that_never_comes_fails_the_collective_on_every_rank(world: World) -> None:
    groups = world.connect([NATIVE, NATIVE])
    tensor = np.ones(ELEMS, "f4")
    partial = PartialInput(tensor.ctypes.data, tensor.nbytes, ready_bytes=tensor.nbytes // 2)
    works = groups[0].start([replace(allreduce(groups[0].site, tensor, ReduceOp.SUM), partial=partial)])
    works.append(groups[1].allreduce(np.ones(ELEMS, "f4")))
    partial.failed(RuntimeError("an illegal address"))
    for work in works:
        with pytest.raises(CancelledError, match="its input could not be read: an illegal address"):
            work.wait(LIMIT_S)
