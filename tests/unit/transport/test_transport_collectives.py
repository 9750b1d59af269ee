"""Collectives over the engine in memory: every operation and dtype against numpy, the same bits on every rank."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from hive_qos.errors import MisuseError
from transport import Group, ReduceOp, TensorView
from transport.collectives.kernels import narrow_bfloat16, widen_bfloat16

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
    if op is ReduceOp.MEAN and inputs[0].dtype.name in INTEGERS:
        total = np.array([math.trunc(Fraction(int(one), len(inputs))) for one in total])
    elif op is ReduceOp.MEAN and total.dtype.kind == "c":
        total = total.real / total.real.dtype.type(len(inputs)) + 1j * (total.imag / total.imag.dtype.type(len(inputs)))
    elif op is ReduceOp.MEAN:
        total = total / total.dtype.type(len(inputs))
    return np.asarray(total).astype(inputs[0].dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
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

    results = world.results(body)
    for i, shape in enumerate(ODD_SIZES):
        wanted = naive([make("float32", shape, r) for r in range(size)], ReduceOp.SUM)
        assert {result[i].tobytes() for result in results} == {wanted.tobytes()}


def test_allreduce_of_every_dtype_and_operation_gives_the_naive_bits_on_every_rank(make_world):
    world = make_world(3, chunk_bytes=256)
    cases = []
    for dtype, op in itertools.product([*FLOATS, *INTEGERS, "bool"], ReduceOp):
        floating = dtype in FLOATS
        if op is ReduceOp.MEAN and dtype == "bool":
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

    results = world.results(body)
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

    for result in world.results(body):
        assert result.tolist() == [260.0] * 9


def test_one_tensor_forms_of_gather_and_reduce_scatter(make_world):
    world = make_world(3)

    def body(group: Group) -> tuple[np.ndarray, np.ndarray]:
        gathered = np.zeros((3, 4), "i4")
        group.all_gather(gathered, np.full(4, group.rank, "i4")).wait()
        output = np.zeros(2)
        group.reduce_scatter(output, np.arange(6.0) * (group.rank + 1)).wait()
        return gathered, output

    for rank, (gathered, output) in enumerate(world.results(body)):
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

    for whole, turned in world.results(body):
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

    for tensors in world.results(body):
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

    assert world.results(body) == [None, 3, None, 3]


def test_an_early_rank_fills_no_more_memory_than_it_sends(make_world):
    world = make_world(2, chunk_bytes=1024)
    tensors = [np.ones(50_000, "f4"), np.ones(50_000, "f4")]
    works = [world.groups[0].allreduce(tensors[0]), world.groups[1].allreduce(tensors[1])]
    for work in works:
        work.wait(30)
    world.results(lambda group: group.barrier().wait(30))
    assert all(engine.stored_bytes() == 0 for engine in world.network.engines.values())
