"""Collectives over the engine in memory: every operation and dtype against numpy, the same bits on every rank."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from hive_qos.errors import CancelledError, ConnectionLostError, MisuseError, PeerError, TimedOutError
from transport import Group, ReduceOp, TensorView
from transport.collectives.reduce import narrow_bfloat16, widen_bfloat16

FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
ODD_SIZES = [(), (0,), (1,), (7,), (3, 5), (20_011,)]


def make(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return generator.integers(0, 11, shape).astype(dtype)
    values = generator.standard_normal(shape)
    return np.asarray(values + 1j * generator.standard_normal(shape) if "complex" in dtype else values).astype(dtype)


def naive(inputs: list[np.ndarray], op: ReduceOp) -> np.ndarray:
    """The reduction as one would write it down, in rank order."""
    wide = np.float32 if inputs[0].dtype == np.float16 else inputs[0].dtype
    total = inputs[0].astype(wide)
    for values in inputs[1:]:
        if op in (ReduceOp.SUM, ReduceOp.MEAN):
            total = total + values.astype(wide)
        elif op is ReduceOp.PRODUCT:
            total = total * values.astype(wide)
        else:
            function = {
                ReduceOp.MIN: np.minimum,
                ReduceOp.MAX: np.maximum,
                ReduceOp.BAND: np.bitwise_and,
                ReduceOp.BOR: np.bitwise_or,
                ReduceOp.BXOR: np.bitwise_xor,
            }[op]
            total = function(total, values.astype(wide))
    if op is ReduceOp.MEAN:
        total = total / total.dtype.type(len(inputs))
    return np.asarray(total).astype(inputs[0].dtype)


def raise_any(results: list[object]) -> list[object]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize("size", range(1, 8))
def test_every_collective_agrees_with_numpy_for_every_world_size(make_world, size):
    world = make_world(size, chunk_bytes=4096)

    def body(group: Group) -> list[np.ndarray]:
        rank = group.rank
        results = []
        for shape in ODD_SIZES:
            tensor = make("float32", shape, rank)
            group.allreduce(tensor).wait()
            results.append(tensor)
            for root in range(size):
                tensor = make("float32", shape, rank)
                group.broadcast(tensor, root).wait()
                assert tensor.tobytes() == make("float32", shape, root).tobytes()
                tensor = make("float32", shape, rank)
                group.reduce(tensor, root, ReduceOp.MAX).wait()
                wanted = naive([make("float32", shape, r) for r in range(size)], ReduceOp.MAX)
                assert tensor.tobytes() == (wanted if root == rank else make("float32", shape, rank)).tobytes()
                outputs = [make("float32", shape, 99) for _ in range(size)] if rank == root else None
                group.gather(outputs, make("float32", shape, rank), root).wait()
                for r, output in enumerate(outputs or []):
                    assert output.tobytes() == make("float32", shape, r).tobytes()
                inputs = [make("float32", shape, r) for r in range(size)] if rank == root else None
                tensor = make("float32", shape, 99)
                group.scatter(tensor, inputs, root).wait()
                assert tensor.tobytes() == make("float32", shape, rank).tobytes()
            outputs = [make("float32", shape, 99) for _ in range(size)]
            group.all_gather(outputs, make("float32", shape, rank)).wait()
            assert all(one.tobytes() == make("float32", shape, r).tobytes() for r, one in enumerate(outputs))
            output = make("float32", shape, 99)
            group.reduce_scatter(output, [make("float32", shape, 10 * rank + i) for i in range(size)]).wait()
            wanted = naive([make("float32", shape, 10 * r + rank) for r in range(size)], ReduceOp.SUM)
            assert output.tobytes() == wanted.tobytes()
            outputs = [make("float32", shape, 99) for _ in range(size)]
            group.all_to_all(outputs, [make("float32", shape, 10 * rank + i) for i in range(size)]).wait()
            assert all(
                one.tobytes() == make("float32", shape, 10 * r + rank).tobytes() for r, one in enumerate(outputs)
            )
        group.barrier().wait()
        return results

    results = raise_any(world.run(body))
    for i, shape in enumerate(ODD_SIZES):
        wanted = naive([make("float32", shape, r) for r in range(size)], ReduceOp.SUM)
        assert {result[i].tobytes() for result in results} == {wanted.tobytes()}


def test_allreduce_of_every_dtype_and_operation_gives_the_naive_bits_on_every_rank(make_world):
    world = make_world(3, chunk_bytes=256)
    cases = []
    for dtype, op in itertools.product([*FLOATS, *INTEGERS, "bool"], ReduceOp):
        floating = dtype in FLOATS
        if op is ReduceOp.MEAN and not floating:
            continue
        if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and floating:
            continue
        if op in (ReduceOp.MIN, ReduceOp.MAX) and "complex" in dtype:
            continue
        cases.append((dtype, op))

    def body(group: Group) -> list[np.ndarray]:
        tensors = [make(dtype, (201,), 5 + group.rank) for dtype, _ in cases]
        for work in [group.allreduce(tensor, op) for tensor, (_, op) in zip(tensors, cases, strict=True)]:
            work.wait()
        return tensors

    results = raise_any(world.run(body))
    for i, (dtype, op) in enumerate(cases):
        inputs = [make(dtype, (201,), 5 + r) for r in range(3)]
        wanted = naive(inputs, op)
        assert {result[i].tobytes() for result in results} == {wanted.tobytes()}, (dtype, op)


def test_allreduce_of_bfloat16_accumulates_in_float32(make_world):
    world = make_world(4)
    # 256 + 1 + 1 + 1 is 259, which rounds to 260; in bfloat16, 256 + 1 stays 256 each time.
    values = [256.0, 1.0, 1.0, 1.0]

    def body(group: Group) -> np.ndarray:
        memory = narrow_bfloat16(np.full(9, values[group.rank], dtype=np.float32))
        group.allreduce(TensorView.from_memory(memory, dtype="bfloat16")).wait()
        return widen_bfloat16(memory.data)

    for result in raise_any(world.run(body)):
        assert result.tolist() == [260.0] * 9


def test_one_tensor_forms_of_gather_and_reduce_scatter(make_world):
    world = make_world(3)

    def body(group: Group) -> tuple[np.ndarray, np.ndarray]:
        gathered = np.zeros((3, 4), "i4")
        group.all_gather(gathered, np.full(4, group.rank, "i4")).wait()
        output = np.zeros(2)
        group.reduce_scatter(output, np.arange(6.0) * (group.rank + 1)).wait()
        return gathered, output

    for rank, (gathered, output) in enumerate(raise_any(world.run(body))):
        assert gathered.tolist() == [[0] * 4, [1] * 4, [2] * 4]
        assert output.tolist() == [12.0 * rank, 6.0 * (2 * rank + 1)]


def test_strided_and_transposed_tensors_are_received_into(make_world):
    world = make_world(2, chunk_bytes=4096)

    def body(group: Group) -> tuple[np.ndarray, np.ndarray]:
        whole = np.zeros((100, 100), "f4")
        whole[::2, ::3] = group.rank + 1
        group.allreduce(whole[::2, ::3]).wait()
        turned = np.full((30, 50), group.rank, "i2").T
        group.broadcast(turned, 1).wait()
        return whole, turned

    for whole, turned in raise_any(world.run(body)):
        assert (whole[::2, ::3] == 3).all()
        assert whole.sum() == whole[::2, ::3].sum()
        assert (turned == 1).all()


def test_collectives_of_two_groups_started_in_different_orders_all_end(make_world):
    world = make_world(3, chunk_bytes=1024)

    def body(group: Group) -> list[np.ndarray]:
        others = [group.subgroup([0, 1, 2], name="a"), group.subgroup([2, 1, 0], name="b")]
        if group.rank == 1:
            others.reverse()
        tensors = {sub.name: [np.full(3000, i + group.rank, "f4") for i in range(4)] for sub in others}
        works = [sub.allreduce(tensor) for sub in others for tensor in tensors[sub.name]]
        for work in reversed(works):
            work.wait()
        return tensors["a"] + tensors["b"]

    for tensors in raise_any(world.run(body)):
        assert [tensor[0] for tensor in tensors] == [3, 6, 9, 12, 3, 6, 9, 12]


def test_a_subgroup_reduces_among_its_members_in_its_own_rank_order(make_world):
    world = make_world(4)

    def body(group: Group) -> object:
        if group.rank == 0:
            with pytest.raises(MisuseError, match="not in"):
                group.subgroup([3, 1])
            return None
        if group.rank == 2:
            return None
        sub = group.subgroup([3, 1])
        assert (sub.rank, sub.size, sub.ranks) == ({3: 0, 1: 1}[group.rank], 2, (3, 1))
        tensor = np.array([group.rank])
        sub.broadcast(tensor, 0).wait()
        return int(tensor[0])

    assert raise_any(world.run(body)) == [None, 3, None, 3]


def test_sizes_that_differ_between_ranks_are_named_on_every_rank(make_world):
    world = make_world(2)

    def body(group: Group) -> object:
        return group.all_gather(np.zeros(2 * (5 + group.rank), "f4"), np.zeros(5 + group.rank, "f4")).wait(5)

    first, second = world.run(body)
    assert isinstance(first, PeerError | CancelledError)
    assert isinstance(second, PeerError | CancelledError)
    both = "5+5 float32", "6+6 float32"
    assert any(all(size in str(one) for size in both) or "24 bytes" in str(one) for one in (first, second))


def test_dtypes_that_differ_between_ranks_are_named(make_world):
    world = make_world(2)
    results = world.run(lambda group: group.allreduce(np.zeros(8, ["f4", "i4"][group.rank])).wait(5))
    assert any(isinstance(one, PeerError) and "float32" in str(one) and "int32" in str(one) for one in results)


def test_ranks_that_call_different_collectives_learn_it(make_world):
    world = make_world(2)

    def body(group: Group) -> object:
        tensor = np.zeros(8, "f4")
        return (group.allreduce(tensor) if group.rank else group.broadcast(tensor, 0)).wait(5)

    results = world.run(body)
    assert any(isinstance(one, PeerError) and "broadcast" in str(one) and "allreduce" in str(one) for one in results)


def test_a_timeout_says_what_was_done_and_for_whom_it_waits(make_world):
    world = make_world(3)
    work = world.groups[0].allreduce(np.zeros(30_000, "f4"), timeout_s=0.2)
    with pytest.raises(TimedOutError, match=r"allreduce 0 of group w, waiting for rank 1, 2") as caught:
        work.wait(5)
    assert caught.value.bytes_done == 80_000  # its parts of the others' shards are sent, nothing has come
    assert caught.value.timeout_s == 0.2


def test_waiting_for_less_than_it_takes_leaves_the_operation_running(make_world):
    world = make_world(2)
    tensor = np.ones(4)
    work = world.groups[0].allreduce(tensor)
    with pytest.raises(TimedOutError):
        work.wait(0.01)
    world.groups[1].allreduce(np.ones(4)).wait(5)
    work.wait(5)
    assert tensor.tolist() == [2.0] * 4


def test_a_rank_that_gives_up_takes_the_others_with_it(make_world):
    world = make_world(3)

    second = world.groups[1].barrier(timeout_s=60.0)
    third = world.groups[2].barrier(timeout_s=0.2)
    with pytest.raises(TimedOutError):
        third.wait(5)
    with pytest.raises(CancelledError, match="rank 2 gave up"):
        second.wait(5)
    # The late rank learns it at once, although it had not begun.
    with pytest.raises(CancelledError, match="rank 2 gave up"):
        world.groups[0].barrier(timeout_s=60.0).wait(5)


def test_a_group_works_on_after_an_operation_that_failed_everywhere(make_world):
    world = make_world(2)
    with pytest.raises(TimedOutError):
        world.groups[0].allreduce(np.zeros(30_000), timeout_s=0.1).wait(5)
    with pytest.raises(CancelledError):
        world.groups[1].allreduce(np.zeros(30_000)).wait(5)
    results = raise_any(world.run(lambda group: [tensor := np.ones(3), group.allreduce(tensor).wait(5)]))
    assert [result[0].tolist() for result in results] == [[2.0] * 3] * 2


def test_abort_ends_what_is_under_way_on_all_ranks(make_world):
    world = make_world(2)
    mine = world.groups[0].allreduce(np.zeros(100))
    world.groups[0].abort("a test")
    with pytest.raises(CancelledError, match="a test"):
        mine.wait(5)
    with pytest.raises(CancelledError, match="a test"):
        world.groups[1].allreduce(np.zeros(100)).wait(5)


def test_await_and_async_with(make_world):
    world = make_world(2)

    def body(group: Group) -> list[float]:
        async def main() -> list[float]:
            tensor = np.ones(3) * (group.rank + 1)
            await asyncio.gather(*(asyncio.ensure_future(_await(group.allreduce(tensor))) for _ in range(1)))
            async with group:
                await group.barrier()
            return tensor.tolist()

        return asyncio.run(main())

    async def _await(work):
        return await work

    assert raise_any(world.run(body)) == [[3.0] * 3] * 2


def test_a_callback_is_called_once_even_when_it_raises(make_world, caplog):
    world = make_world(2)
    called = []

    def bad(work):
        called.append(work)
        raise ValueError("a bug of the caller")

    def body(group: Group) -> None:
        work = group.barrier()
        work.add_done_callback(bad)
        work.wait(5)
        work.add_done_callback(called.append)
        group.barrier().wait(5)

    raise_any(world.run(body))
    assert len(called) == 4


def test_waiting_in_a_callback_is_misuse_and_not_a_deadlock(make_world):
    world = make_world(2)
    caught = []

    def wait_for_another(_work):
        try:
            world.groups[0].barrier().wait()
        except MisuseError as error:
            caught.append(error)

    works = [group.barrier() for group in world.groups]
    works[0].add_done_callback(wait_for_another)
    works[1].wait(5)
    world.groups[1].barrier().wait(5)
    assert len(caught) <= 1  # called at once, in this thread, where the barrier had ended already
    late = world.groups[0].recv(None, 1)
    late.add_done_callback(wait_for_another)
    world.groups[1].send(np.ones(1), 0).wait(5)
    late.wait(5)
    world.groups[1].barrier().wait(5)
    assert caught


def test_closing_ends_what_is_under_way_and_further_use_is_misuse(make_world):
    world = make_world(2)
    work = world.groups[0].allreduce(np.zeros(4))
    world.groups[0].close()
    with pytest.raises(CancelledError, match="closed"):
        work.wait(5)
    with pytest.raises(MisuseError, match="closed"):
        world.groups[0].barrier()
    world.groups[0].close()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda group: group.allreduce([1, 2]), "no tensor"),
        (lambda group: group.allreduce(b"bytes"), "read-only"),
        (lambda group: group.allreduce(np.zeros(3, "i4"), ReduceOp.MEAN), "mean of int32"),
        (lambda group: group.allreduce(np.zeros(3, "c8"), ReduceOp.MAX), "no order"),
        (lambda group: group.allreduce(np.zeros(3), ReduceOp.BXOR), "integers or bool"),
        (lambda group: group.broadcast(np.zeros(3), 2), "ranks 0 to 1"),
        (lambda group: group.all_gather(np.zeros(5), np.zeros(3)), "5 elements"),
        (lambda group: group.all_gather([np.zeros(5)], np.zeros(5)), "as many tensors"),
        (lambda group: group.all_gather([np.zeros(4), np.zeros(4)], np.zeros(3)), "keeps"),
        (lambda group: group.gather(None, np.zeros(3), group.rank), "must pass the list"),
        (lambda group: group.all_to_all([np.zeros(3), np.zeros(3, "i4")], [np.zeros(3)] * 2), "different dtypes"),
        (lambda group: group.reduce_scatter(np.zeros(3), [np.zeros(2)] * 2), "they differ"),
        (lambda group: group.send(np.zeros(3), 5), "ranks 0 to 1"),
        (lambda group: group.send(np.zeros(3), group.rank), "with itself"),
        (lambda group: group.recv(None, 1 - group.rank, -1), "a tag is a number"),
        (lambda group: group.subgroup([0, 0]), "distinct"),
        (lambda group: group.subgroup([0, 1], name="w"), "already"),
        (lambda group: group.subgroup([0, 1], name="x" * 100), "at most"),
    ],
)
def test_what_the_caller_does_wrong_is_said_at_once(make_world, call, text):
    world = make_world(2)
    with pytest.raises(MisuseError, match=text):
        call(world.groups[0])
    raise_any(world.run(lambda group: group.barrier().wait(5)))


def test_an_early_rank_fills_no_more_memory_than_it_sends(make_world):
    world = make_world(2, chunk_bytes=1024)
    tensors = [np.ones(50_000, "f4"), np.ones(50_000, "f4")]
    works = [world.groups[0].allreduce(tensors[0]), world.groups[1].allreduce(tensors[1])]
    for work in works:
        work.wait(10)
    raise_any(world.run(lambda group: group.barrier().wait(5)))
    assert all(engine.stored_bytes() == 0 for engine in world.network.engines.values())


def test_a_lost_connection_is_made_again_and_the_collective_goes_on(make_world):
    world = make_world(3, chunk_bytes=1024, reconnect_s=5.0)
    world.network.hold("rank-1", "rank-0")
    tensors = [np.full(20_000, r + 1, "f4") for r in range(3)]
    works = [group.allreduce(tensor) for group, tensor in zip(world.groups, tensors, strict=True)]
    world.network.cut("rank-0", "rank-1")
    world.network.release("rank-1", "rank-0")
    for work in works:
        work.wait(10)
    assert all((tensor == 6).all() for tensor in tensors)


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_a_rank_that_dies_is_named_by_all_others(make_world, when):
    world = make_world(3, chunk_bytes=1024)
    if when == "before":
        world.network.kill("rank-2")
    if when == "in":
        world.network.hold("rank-2", "rank-0")
    works = [group.allreduce(np.ones(20_000, "f4")) for group in world.groups[: 2 if when == "before" else 3]]
    if when == "in":
        world.network.kill("rank-2")
    if when == "after":
        for work in works:
            work.wait(10)
        world.network.kill("rank-2")
        works = [group.allreduce(np.ones(20_000, "f4")) for group in world.groups[:2]]
    for work in works[:2]:
        with pytest.raises(ConnectionLostError, match="rank 2") as caught:
            work.wait(10)
        assert caught.value.rank == 2
    # From now on every operation that needs it raises at once, and those that do not still work.
    with pytest.raises(ConnectionLostError):
        world.groups[0].barrier(timeout_s=60.0).wait(2)
    with pytest.raises(ConnectionLostError):
        world.groups[1].barrier(timeout_s=60.0).wait(2)
    pair = [group.subgroup([0, 1]) for group in world.groups[:2]]
    for work in [group.barrier() for group in pair]:
        work.wait(5)
    assert world.groups[0].lost_ranks().keys() == {2}


def test_the_first_use_of_a_subgroup_after_a_death_raises_at_once(make_world):
    world = make_world(3)
    subs = [group.subgroup([0, 1, 2], name="late") for group in world.groups]
    world.network.kill("rank-1")
    for sub in (subs[0], subs[2]):
        with pytest.raises(ConnectionLostError, match="rank 1"):
            sub.allreduce(np.zeros(4), timeout_s=60.0).wait(5)


@pytest.mark.parametrize(("members", "dead"), [((1, 2, 3), 3), ((2, 3, 4), 4), ((4, 3, 1), 3), ((3, 1, 0), 1)])
def test_a_subgroup_names_a_lost_member_by_its_rank_in_it_on_every_other_member(make_world, members, dead):
    world = make_world(5)
    subs = {rank: world.groups[rank].subgroup(members, name="s") for rank in members}
    works = {rank: subs[rank].allreduce(np.ones(10, "f4"), timeout_s=20.0) for rank in members if rank != dead}
    # One member learns it first, and is the only one that knows before it gives up and says so.
    first = subs[next(iter(works))]._runtime
    first._loop.call(lambda: first._endpoint.bury(first._endpoint.peers.dead(dead, "cable cut")))
    for work in works.values():
        with pytest.raises(ConnectionLostError, match="cable cut") as caught:
            work.wait(10)
        assert caught.value.rank == members.index(dead)
        assert caught.value.peer == f"rank-{dead}"


def test_a_death_that_one_rank_notices_reaches_those_who_do_not_talk_to_the_dead(make_world):
    world = make_world(3, reconnect_s=0.1)
    with world.network.lock:
        world.network.engines["rank-1"].dead = True
    world.network.cut("rank-0", "rank-1")
    # Rank 2's own connection to rank 1 still looks alive.
    with pytest.raises(ConnectionLostError, match="noticed by rank 0"):
        world.groups[2].recv(np.zeros(3), 1, timeout_s=60.0).wait(5)


def test_a_rank_that_leaves_after_its_part_is_done_harms_nobody(make_world):
    world = make_world(3)

    def body(group: Group) -> np.ndarray:
        tensor = np.ones(70_000, "f4")
        work = group.allreduce(tensor)
        work.wait(5)
        if group.rank == 1:
            group.send(np.arange(3), 0).wait(5)
            group.close()
        return tensor

    results = raise_any(world.run(body))
    assert all((tensor == 3).all() for tensor in results)
    assert world.groups[0].recv(None, 1).wait(5).tolist() == [0, 1, 2]  # sent before it left
    with pytest.raises(ConnectionLostError, match="has left the group"):
        world.groups[0].recv(None, 1, timeout_s=60.0).wait(5)
