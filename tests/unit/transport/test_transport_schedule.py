"""The schedules, run against each other in random orders and compared with numpy and with a naive reduction."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_simulator import simulate

from transport.collectives.algorithms.registry import schedule_of
from transport.collectives.algorithms.window import WINDOW_CHUNKS
from transport.collectives.partition import cut, cut_chunks, cut_shards
from transport.collectives.problem import Operation, Plan, Problem
from transport.collectives.schedule import HEADER, REGION, SCRATCH, STEP, Builder, Op, Region, Schedule

sizes = st.integers(1, 7)
lengths = st.one_of(st.integers(0, 40), st.integers(0, 3000))
chunks = st.sampled_from([1, 7, 64, 1000, 10_000])
seeds = st.integers(0, 2**32)
DIRECT = Plan()
few = settings(max_examples=40, deadline=None)


def schedules(operation: Operation, *, size: int, plan: Plan = DIRECT, **fields) -> list[Schedule]:
    """Of all ranks, for float32."""
    fields = {"item_bytes": 4, **fields}
    return [schedule_of(Problem(operation=operation, rank=r, size=size, **fields), plan) for r in range(size)]


def values(size: int, elems: int, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [(generator.standard_normal(elems) * 10.0 ** generator.integers(-3, 4)).astype("f4") for _ in range(size)]


@few
@given(size=sizes, chunk=st.sampled_from([3, 64, 1000]), seed=seeds)
def test_all_to_all_moves_every_part_to_its_place(size, chunk, seed):
    generator = np.random.default_rng(seed)
    elems = generator.integers(0, 60, (size, size))
    inputs = [[values(1, int(elems[r, i]), seed + 31 * r + i)[0] for i in range(size)] for r in range(size)]
    buffers = [
        [*(np.zeros(int(elems[i, r]), "f4") for i in range(size)), *(one.copy() for one in inputs[r])]
        for r in range(size)
    ]
    plans = [
        schedule_of(
            Problem(
                operation=Operation.ALL_TO_ALL,
                rank=r,
                size=size,
                item_bytes=4,
                counts=tuple(map(int, elems[r])),
                receive_counts=tuple(map(int, elems[:, r])),
                chunk_bytes=4 * chunk,
            ),
            Plan(),
        )
        for r in range(size)
    ]
    simulate(plans, buffers, seed=seed)
    for receiver, sender in itertools.product(range(size), repeat=2):
        assert np.array_equal(buffers[receiver][sender], inputs[sender][receiver])


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_allreduce_sends_no_more_than_a_ring(size):
    elems = 16 * size * 1000
    for schedule in schedules(Operation.ALLREDUCE, size=size, counts=(elems,), chunk_bytes=4000):
        assert sum(nbytes for _, nbytes in schedule.sent_bytes) == 4 * 2 * (size - 1) * elems // size


def test_scratch_memory_is_bounded_whatever_the_tensor():
    schedule = schedules(Operation.ALLREDUCE, size=4, counts=(10**8,), chunk_bytes=2**19)[0]
    assert schedule.scratch_bytes <= WINDOW_CHUNKS * 3 * 2**19


def test_a_small_tensor_has_one_owner_and_owners_take_turns():
    sent = []
    for turn in range(3):
        plans = schedules(Operation.ALLREDUCE, size=3, counts=(100,), turn=turn)
        sent.append([sum(step.op is Op.SEND for step in plan.rows) for plan in plans])
    assert sent == [[2, 1, 1], [1, 2, 1], [1, 1, 2]]


def test_the_same_problem_has_the_same_schedule_object():
    first, second = (schedules(Operation.ALLREDUCE, size=2, counts=(70_001,))[0] for _ in range(2))
    assert first is second
    assert first.encoded is second.encoded


def test_an_encoded_schedule_has_the_bytes_that_the_format_says():
    builder = Builder(rank=1, size=3)
    place = builder.scratch(8)
    arrived = builder.receive(0, 7, place)
    reduced = builder.reduce(Region(0, 16, 24), [place, Region(0, 16, 24)], [arrived])
    builder.send(2, 9, Region(0, 16, 24), [reduced])
    steps = [(2, 0, 0, 0, 0, 7, 0, 1, 0, 0, 0), (3, 0, 1, 0, 0, 0, 1, 3, 0, 1, 0), (1, 0, 0, 0, 2, 9, 4, 1, 1, 1, 0)]
    regions = [(SCRATCH, 0, 0, 8), (0, 0, 16, 24), (SCRATCH, 0, 0, 8), (0, 0, 16, 24), (0, 0, 16, 24)]
    wanted = struct.pack("<4sIIIQ", b"HCS1", 3, 5, 2, 8)
    wanted += b"".join(struct.pack("<BBBBIIIIIII", *step) for step in steps)
    wanted += b"".join(struct.pack("<iIQQ", *region) for region in regions) + struct.pack("<II", arrived, reduced)
    assert builder.done().encoded == wanted
    assert (HEADER.itemsize, STEP.itemsize, REGION.itemsize) == (24, 32, 24)


def test_nobody_can_change_a_schedule_that_calls_share():
    with pytest.raises(ValueError, match="read-only"):
        schedules(Operation.BARRIER, size=2)[0].steps["peer"] = 0


@given(elems=st.integers(0, 10**9), weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_shards_cover_every_element_exactly_once(elems, weights):
    if sum(weights) <= 0:
        with pytest.raises(ValueError, match="not all zero"):
            cut_shards(elems, weights)
        return
    shards = cut_shards(elems, weights)
    assert [start for start, _ in shards] == [0, *(stop for _, stop in shards[:-1])]
    assert shards[-1][1] == elems
    assert all(start <= stop for start, stop in shards)
    assert all(start == stop for (start, stop), weight in zip(shards, weights, strict=True) if weight == 0)


def test_every_python_cuts_the_same_shards(monkeypatch):
    """`sum` of floats is exact to the last bit from 3.12 on, and was not before; ranks may run either."""
    elems, weights, cuts = 2**40, [1e16, 1.0, 1.0, 1.0, 1.0], []
    for add_up in (lambda values: functools.reduce(operator.add, values), math.fsum):
        monkeypatch.setattr("builtins.sum", add_up)
        cuts.append(cut_shards(elems, weights))
        monkeypatch.undo()
    assert cuts[0] == cuts[1]


@given(start=st.integers(0, 1000), elems=st.integers(0, 10_000), chunk=st.integers(1, 3000))
def test_chunks_cover_a_run_and_are_nearly_equal(start, elems, chunk):
    runs = cut_chunks(start, start + elems, chunk)
    assert [one for run in runs for one in range(*run)] == list(range(start, start + elems))
    if runs:
        lengths = [stop - begin for begin, stop in runs]
        assert max(lengths) <= chunk
        assert max(lengths) - min(lengths) <= 1


def test_chunks_are_numbered_so_that_owners_take_turns():
    owners = [chunk.owner for chunk in cut(64 * 6, [1.0, 1.0, 1.0], 64)]
    assert owners == [0, 1, 2, 0, 1, 2]
