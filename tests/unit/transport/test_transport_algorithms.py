"""Every algorithm, run in random orders: the same bits on all ranks, the bytes that were reckoned, no deadlock."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_simulator import check, simulate

from transport import ReduceOp
from transport.collectives.algorithms.registry import ALGORITHMS, schedule_of
from transport.collectives.algorithms.weighted import FAST_MAX, WEIGHT_MAX, weights_of
from transport.collectives.codecs import Codec
from transport.collectives.kernels import narrow_bfloat16, widen_bfloat16
from transport.collectives.problem import Operation, Plan, Problem
from transport.collectives.schedule import Op, Schedule

FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint64"]
LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 3000))
CASES = [(operation, name) for operation, names in ALGORITHMS.items() for name in names]
IN_RANK_ORDER = ["direct", "weighted", "exchange", "doubling"]
CODING = (Op.ENCODE, Op.DECODE)
STEP = {Codec.BFLOAT16: 2**-7, Codec.INT8: 1 / 127, Codec.INT4: 1 / 7}
"""Of a codec, in parts of a block's largest value."""
few = settings(max_examples=25, deadline=None)


def storage(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def make(dtype: str, elems: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype in INTEGERS:
        return generator.integers(0, 100, elems).astype(dtype)
    values = generator.standard_normal(elems) * 10.0 ** generator.integers(-2, 3)
    if dtype == "bfloat16":
        return narrow_bfloat16(values.astype("f4"))
    return values.astype(dtype)


def widen(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return widen_bfloat16(values.data.cast("B"))
    return values.astype({"float16": "float32"}.get(dtype, dtype))


def naive_sum(inputs: list[np.ndarray], dtype: str) -> np.ndarray:
    """In rank order, rounded once."""
    with np.errstate(all="ignore"):
        total = widen(inputs[0], dtype)
        for values in inputs[1:]:
            total = total + widen(values, dtype)
        return narrow_bfloat16(total) if dtype == "bfloat16" else total.astype(dtype)


@st.composite
def plans(draw, name: str, size: int) -> Plan:
    """A plan for an algorithm: any weights, any sites."""
    if name == "weighted":
        weights = draw(st.lists(st.integers(0, WEIGHT_MAX), min_size=size, max_size=size).filter(any))
        return Plan("weighted", weights=tuple(weights))
    if name == "two_level":
        drawn = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
        numbers = {site: number for number, site in enumerate(dict.fromkeys(drawn))}
        return Plan("two_level", sites=tuple(numbers[site] for site in drawn), delegates=draw(st.integers(0, 3)))
    return Plan(name)


def schedules(problem: Problem, plan: Plan) -> list[Schedule]:
    return [schedule_of(replace(problem, rank=rank), plan) for rank in range(problem.size)]


def check_traffic(problem: Problem, plan: Plan, made: list[Schedule]) -> None:
    traffic = ALGORITHMS[problem.operation][plan.algorithm].traffic(problem, plan)
    coded = [
        sum(
            step.regions[1 if step.op is Op.ENCODE else 0].nbytes
            for step in one.rows
            if step.codec and step.op in CODING
        )
        for one in made
    ]
    assert traffic.coded_bytes == max(coded)
    reckoned = traffic.pairs
    sent = np.zeros_like(reckoned)
    received = np.zeros_like(reckoned)
    for rank, schedule in enumerate(made):
        for peer, nbytes in schedule.sent_bytes:
            sent[rank, peer] = nbytes
        for peer, nbytes in schedule.received_bytes:
            received[peer, rank] = nbytes
    assert np.array_equal(sent, reckoned)
    assert np.array_equal(received, reckoned)


def agree(results: list[np.ndarray], inputs: list[np.ndarray], dtype: str, *, in_rank_order: bool) -> None:
    """All ranks hold the same bits, and those are the sum."""
    assert len({result.tobytes() for result in results}) == 1
    wanted = naive_sum(inputs, dtype)
    if in_rank_order or dtype in INTEGERS:
        assert results[0].tobytes() == wanted.tobytes()
        return
    # One rounding for each site's sum, one for the result; by the magnitude of what was added.
    epsilon = {"bfloat16": 2**-8, "float16": 2**-11, "float64": 2**-52}.get(dtype, 2**-23)
    scale = np.sum([np.abs(widen(one, dtype)) for one in inputs], axis=0) + 1e-6
    assert np.all(np.abs(widen(results[0], dtype) - widen(wanted, dtype)) <= 8 * epsilon * scale)


@pytest.mark.parametrize("name", ALGORITHMS[Operation.ALLREDUCE])
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_every_all_reduce_gives_all_ranks_the_same_sum(name, data, elems, seed):
    size = data.draw(st.integers(1, 8))
    dtype = data.draw(st.sampled_from(FLOATS + INTEGERS))
    chunk_bytes = data.draw(st.sampled_from([512, 2000, 40_000]))
    plan = data.draw(plans(name, size))
    inputs = [make(dtype, elems, seed + rank) for rank in range(size)]
    problem = Problem(
        operation=Operation.ALLREDUCE,
        rank=0,
        size=size,
        item_bytes=inputs[0].itemsize,
        counts=(elems,),
        chunk_bytes=chunk_bytes,
        turn=seed % size,
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    buffers = [[one.copy()] for one in inputs]
    simulate(made, buffers, dtype=dtype, seed=seed)
    agree([result for (result,) in buffers], inputs, dtype, in_rank_order=name in IN_RANK_ORDER)


@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS[Operation.ALLREDUCE].items() if one.encodes])
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_every_encoded_all_reduce_gives_all_ranks_the_same_bits_and_sends_what_was_reckoned(name, data, elems, seed):
    size = data.draw(st.integers(2, 8))
    codec = data.draw(st.sampled_from(list(Codec)[1:]))
    plan = data.draw(plans(name, size))
    inputs = [np.random.default_rng(seed + rank).standard_normal(elems).astype("f4") for rank in range(size)]
    problem = Problem(
        operation=Operation.ALLREDUCE,
        rank=0,
        size=size,
        item_bytes=4,
        counts=(elems,),
        chunk_bytes=data.draw(st.sampled_from([512, 2000, 40_000])),
        turn=seed % size,
        codec=codec,
        feeds_back=data.draw(st.booleans()),
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    buffers = [[one.copy(), np.zeros_like(one)] for one in inputs]
    simulate(made, buffers, op=ReduceOp.MEAN, seed=seed)
    assert len({result.tobytes() for result, _ in buffers}) == 1
    # Half a step for what each rank sent, and for the result.
    step = STEP[codec]
    largest = max((float(np.abs(one).max()) for one in inputs), default=0.0) if elems else 0.0
    assert np.all(np.abs(buffers[0][0] - np.mean(inputs, axis=0)) <= (1 + step) * step * largest + 1e-5)
    if not problem.feeds_back:
        assert not any(residual.any() for _, residual in buffers)


@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS[Operation.ALLREDUCE].items() if one.encodes])
def test_error_feedback_on_both_ways_makes_up_for_what_encoding_left_out(name):
    size, elems, steps = 4, 600, 40
    plan = Plan(name, sites=(0, 0, 1, 1) if name == "two_level" else ())
    inputs = [np.random.default_rng(rank).standard_normal(elems).astype("f4") for rank in range(size)]
    off = {}
    for feeds_back in (False, True):
        problem = Problem(
            operation=Operation.ALLREDUCE,
            rank=0,
            size=size,
            item_bytes=4,
            counts=(elems,),
            chunk_bytes=512,
            codec=Codec.INT4,
            feeds_back=feeds_back,
        )
        residuals = [np.zeros_like(one) for one in inputs]
        total = np.zeros(elems)
        for step in range(steps):
            buffers = [[one.copy(), residual] for one, residual in zip(inputs, residuals, strict=True)]
            simulate(schedules(problem, plan), buffers, seed=step)
            total += buffers[0][0]
        off[feeds_back] = np.abs(total / steps - np.sum(inputs, axis=0)).max()
    assert off[True] < off[False] / 8


def encoding(operation: Operation) -> list[str]:
    return [name for name, one in ALGORITHMS[operation].items() if one.encodes]


@pytest.mark.parametrize("operation", [Operation.ALLREDUCE, Operation.REDUCE])
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_of_means_nothing_is_lost_where_plans_and_the_ranks_that_take_part_change(operation, data, elems, seed):
    inputs = [np.random.default_rng(seed + rank).standard_normal(elems).astype("f4") for rank in range(5)]
    residuals = [np.zeros_like(one) for one in inputs]
    lacks = np.zeros(elems)
    for step in range(6):
        size = data.draw(st.integers(2, 5))
        problem = Problem(
            operation=operation,
            rank=0,
            size=size,
            item_bytes=4,
            counts=(elems,),
            chunk_bytes=2000,
            turn=step % size,
            codec=Codec.INT4,
            feeds_back=True,
        )
        plan = data.draw(st.sampled_from(encoding(operation)).flatmap(lambda name, size=size: plans(name, size)))
        buffers = [[inputs[rank].copy(), residuals[rank]] for rank in range(size)]
        simulate(schedules(problem, plan), buffers, op=ReduceOp.MEAN, seed=seed + step)
        lacks += np.mean(inputs[:size], axis=0, dtype="f8") - buffers[0][0]
    assert np.allclose(lacks, np.sum(residuals, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", encoding(Operation.REDUCE))
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_every_encoded_reduce_is_near_the_mean_and_changes_the_root_alone(name, data, elems, seed):
    size = data.draw(st.integers(2, 8))
    root = data.draw(st.integers(0, size - 1))
    codec = data.draw(st.sampled_from(list(Codec)[1:]))
    plan = data.draw(plans(name, size))
    inputs = [np.random.default_rng(seed + rank).standard_normal(elems).astype("f4") for rank in range(size)]
    problem = Problem(
        operation=Operation.REDUCE,
        rank=0,
        size=size,
        item_bytes=4,
        counts=(elems,),
        root=root,
        chunk_bytes=data.draw(st.sampled_from([512, 2000])),
        codec=codec,
        feeds_back=data.draw(st.booleans()),
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    buffers = [[one.copy(), np.zeros_like(one)] for one in inputs]
    simulate(made, buffers, op=ReduceOp.MEAN, seed=seed)
    largest = max((float(np.abs(one).max()) for one in inputs), default=0.0) if elems else 0.0
    off = np.abs(buffers[root][0] - np.mean(inputs, axis=0))
    assert np.all(off <= (1 + STEP[codec]) * STEP[codec] * largest + 1e-5)
    assert all(buffers[rank][0].tobytes() == inputs[rank].tobytes() for rank in range(size) if rank != root)


@pytest.mark.parametrize("name", encoding(Operation.REDUCE_SCATTER))
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_every_encoded_reduce_scatter_is_near_the_mean_and_leaves_its_inputs(name, data, seed):
    size = data.draw(st.integers(2, 8))
    codec = data.draw(st.sampled_from(list(Codec)[1:]))
    counts = data.draw(st.lists(st.integers(0, 700), min_size=size, max_size=size))
    plan = data.draw(plans(name, size))
    inputs = [
        [
            np.random.default_rng(seed + 31 * rank + i).standard_normal(count).astype("f4")
            for i, count in enumerate(counts)
        ]
        for rank in range(size)
    ]
    problem = Problem(
        operation=Operation.REDUCE_SCATTER,
        rank=0,
        size=size,
        item_bytes=4,
        counts=tuple(counts),
        chunk_bytes=1024,
        codec=codec,
        feeds_back=data.draw(st.booleans()),
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    buffers = [
        [
            *(one.copy() for one in inputs[rank]),
            np.zeros(counts[rank], "f4"),
            *(np.zeros_like(one) for one in inputs[rank]),
        ]
        for rank in range(size)
    ]
    simulate(made, buffers, op=ReduceOp.MEAN, seed=seed)
    for rank in range(size):
        parts = [inputs[other][rank] for other in range(size)]
        largest = max((float(np.abs(one).max()) for one in parts if one.size), default=0.0)
        # Half a step for each rank's values, or each site's sum, of which the mean is taken.
        assert np.all(np.abs(buffers[rank][size] - np.mean(parts, axis=0)) <= STEP[codec] / 2 * largest + 1e-5)
        assert all(np.array_equal(buffers[rank][i], inputs[rank][i]) for i in range(size))


@pytest.mark.parametrize("name", encoding(Operation.REDUCE_SCATTER))
def test_error_feedback_of_a_reduce_scatter_makes_up_for_what_encoding_left_out(name):
    size, elems, steps = 4, 600, 40
    plan = Plan(name, sites=(0, 0, 1, 1) if name == "two_level" else ())
    inputs = [
        [np.random.default_rng(9 * rank + i).standard_normal(elems).astype("f4") for i in range(size)]
        for rank in range(size)
    ]
    off = {}
    for feeds_back in (False, True):
        problem = Problem(
            operation=Operation.REDUCE_SCATTER,
            rank=0,
            size=size,
            item_bytes=4,
            counts=(elems,) * size,
            chunk_bytes=1024,
            codec=Codec.INT4,
            feeds_back=feeds_back,
        )
        residuals = [[np.zeros(elems, "f4") for _ in range(size)] for _ in range(size)]
        total = np.zeros((size, elems))
        for step in range(steps):
            buffers = [[*inputs[rank], np.zeros(elems, "f4"), *residuals[rank]] for rank in range(size)]
            simulate(schedules(problem, plan), buffers, seed=step)
            total += [one[size] for one in buffers]
        wanted = [np.sum([inputs[other][rank] for other in range(size)], axis=0) for rank in range(size)]
        off[feeds_back] = np.abs(total / steps - wanted).max()
    assert off[True] < off[False] / 8


@pytest.mark.parametrize("name", encoding(Operation.ALL_GATHER))
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_every_encoded_all_gather_gives_all_ranks_the_same_bits_near_the_originals(name, data, seed):
    size = data.draw(st.integers(2, 8))
    codec = data.draw(st.sampled_from(list(Codec)[1:]))
    counts = data.draw(st.lists(st.integers(0, 700), min_size=size, max_size=size))
    plan = data.draw(plans(name, size))
    inputs = [
        np.random.default_rng(seed + rank).standard_normal(count).astype("f4") for rank, count in enumerate(counts)
    ]
    problems = [
        Problem(
            operation=Operation.ALL_GATHER,
            rank=rank,
            size=size,
            item_bytes=4,
            counts=(counts[rank],) * size,
            receive_counts=tuple(counts),
            chunk_bytes=1024,
            codec=codec,
        )
        for rank in range(size)
    ]
    made = [schedule_of(problem, plan) for problem in problems]
    check_traffic(problems[0], plan, made)
    sources = [one.copy() for one in inputs]
    buffers = [[*(np.zeros(count, "f4") for count in counts), *[sources[rank]] * size] for rank in range(size)]
    simulate(made, buffers, seed=seed)
    for origin in range(size):
        assert len({buffers[rank][origin].tobytes() for rank in range(size)}) == 1
        assert sources[origin].tobytes() == inputs[origin].tobytes()
        largest = np.abs(inputs[origin]).max() if counts[origin] else 0.0
        assert np.all(np.abs(buffers[0][origin] - inputs[origin]) <= STEP[codec] / 2 * largest + 1e-6)


@pytest.mark.parametrize("sites", [(0, 0, 1, 1), (0, 1, 1, 1, 1), (0, 1, 0, 2, 2, 1, 2)])
@pytest.mark.parametrize(("operation", "name"), CASES)
def test_no_step_touches_what_another_may_be_using_however_many_chunks_there_are(operation, name, sites):
    size = len(sites)
    plan = Plan(name, sites=sites if name == "two_level" else (), weights=(5, *range(1, size)))
    counts = (20_000,) if operation in (Operation.ALLREDUCE, Operation.BROADCAST, Operation.REDUCE) else (7000,) * size
    for rank in range(size):
        check(
            schedule_of(
                Problem(
                    operation=operation,
                    rank=rank,
                    size=size,
                    counts=() if operation is Operation.BARRIER else counts,
                    receive_counts=counts if operation is Operation.ALL_GATHER else (),
                    chunk_bytes=128,
                ),
                plan,
            )
        )


@pytest.mark.parametrize("name", ALGORITHMS[Operation.ALLREDUCE])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_every_all_reduce_divides_a_mean_once(name, size):
    sites = tuple(rank % 2 for rank in range(size)) if name == "two_level" else ()
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(301,), chunk_bytes=256)
    buffers = [[np.full(301, 10 * rank, "i4")] for rank in range(size)]
    simulate(schedules(problem, Plan(name, sites=sites)), buffers, dtype="int32", op=ReduceOp.MEAN)
    assert all((result == 10 * sum(range(size)) // size).all() for (result,) in buffers)


@pytest.mark.parametrize("name", ALGORITHMS[Operation.BROADCAST])
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_every_broadcast_copies_the_root_to_everybody(name, data, elems, seed):
    size = data.draw(st.integers(1, 8))
    root = data.draw(st.integers(0, size - 1))
    chunk_bytes = data.draw(st.sampled_from([512, 2000, 40_000]))
    plan = data.draw(plans(name, size))
    problem = Problem(
        operation=Operation.BROADCAST,
        rank=0,
        size=size,
        item_bytes=4,
        counts=(elems,),
        root=root,
        chunk_bytes=chunk_bytes,
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    inputs = [make("float32", elems, seed + rank) for rank in range(size)]
    buffers = [[one.copy()] for one in inputs]
    simulate(made, buffers, seed=seed)
    assert all(result.tobytes() == inputs[root].tobytes() for (result,) in buffers)


@pytest.mark.parametrize("name", ALGORITHMS[Operation.REDUCE])
@few
@given(data=st.data(), elems=LENGTHS, seed=st.integers(0, 2**32))
def test_every_reduce_changes_the_root_alone(name, data, elems, seed):
    size = data.draw(st.integers(1, 8))
    root = data.draw(st.integers(0, size - 1))
    plan = data.draw(plans(name, size))
    problem = Problem(
        operation=Operation.REDUCE, rank=0, size=size, item_bytes=4, counts=(elems,), root=root, chunk_bytes=512
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    inputs = [make("float32", elems, seed + rank) for rank in range(size)]
    buffers = [[one.copy()] for one in inputs]
    simulate(made, buffers, seed=seed)
    agree([buffers[root][0]], inputs, "float32", in_rank_order=name in IN_RANK_ORDER)
    assert all(result.tobytes() == inputs[rank].tobytes() for rank, (result,) in enumerate(buffers) if rank != root)


@pytest.mark.parametrize("name", ALGORITHMS[Operation.REDUCE_SCATTER])
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_every_reduce_scatter_gives_each_rank_the_sum_of_its_part(name, data, seed):
    size = data.draw(st.integers(1, 8))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "int16"]))
    counts = data.draw(st.lists(st.integers(0, 300), min_size=size, max_size=size))
    plan = data.draw(plans(name, size))
    inputs = [[make(dtype, count, seed + 31 * rank + i) for i, count in enumerate(counts)] for rank in range(size)]
    problem = Problem(
        operation=Operation.REDUCE_SCATTER,
        rank=0,
        size=size,
        item_bytes=np.dtype(storage(dtype)).itemsize,
        counts=tuple(counts),
        chunk_bytes=512,
    )
    made = schedules(problem, plan)
    check_traffic(problem, plan, made)
    buffers = [[*(one.copy() for one in inputs[rank]), np.zeros(counts[rank], storage(dtype))] for rank in range(size)]
    simulate(made, buffers, dtype=dtype, seed=seed)
    for rank in range(size):
        parts = [inputs[other][rank] for other in range(size)]
        agree([buffers[rank][size]], parts, dtype, in_rank_order=name in IN_RANK_ORDER)
        assert all(np.array_equal(buffers[rank][i], inputs[rank][i]) for i in range(size))


@pytest.mark.parametrize("name", ALGORITHMS[Operation.ALL_GATHER])
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_every_all_gather_brings_every_part_to_everybody(name, data, seed):
    size = data.draw(st.integers(1, 8))
    counts = data.draw(st.lists(st.integers(0, 300), min_size=size, max_size=size))
    plan = data.draw(plans(name, size))
    inputs = [make("float32", count, seed + rank) for rank, count in enumerate(counts)]
    problems = [
        Problem(
            operation=Operation.ALL_GATHER,
            rank=rank,
            size=size,
            item_bytes=4,
            counts=(counts[rank],) * size,
            receive_counts=tuple(counts),
            chunk_bytes=512,
        )
        for rank in range(size)
    ]
    made = [schedule_of(problem, plan) for problem in problems]
    check_traffic(problems[0], plan, made)
    buffers = [[*(np.zeros(count, "f4") for count in counts), *[inputs[rank]] * size] for rank in range(size)]
    simulate(made, buffers, seed=seed)
    for rank, origin in itertools.product(range(size), repeat=2):
        assert np.array_equal(buffers[rank][origin], inputs[origin])


@pytest.mark.parametrize("name", ALGORITHMS[Operation.BARRIER])
@pytest.mark.parametrize("size", range(1, 9))
def test_every_barrier_is_over_when_all_ranks_have_begun(name, size):
    made = schedules(Problem(operation=Operation.BARRIER, rank=0, size=size), Plan(name))
    simulate(made, [[] for _ in range(size)], seed=size)
    for begun in range(size):  # a rank that has not begun keeps every other one from the end
        heard: list[set[int]] = [{rank} for rank in range(size)]
        for _ in range(size):
            for rank, schedule in enumerate(made):
                for step in schedule.rows:
                    if step.op.name == "RECEIVE" and step.peer != begun:
                        heard[rank] |= heard[step.peer]
        assert all(begun not in heard[rank] for rank in range(size) if rank != begun)


def test_a_slow_link_owns_nothing_and_no_link_carries_more_than_the_time_allows():
    rates = (100, 100, 100, 25)
    weights = weights_of(rates)
    assert weights == (1000, 1000, 1000, 0)
    elems = 3 * 16 * 1000
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=4, item_bytes=4, counts=(elems,))
    pairs = ALGORITHMS[Operation.ALLREDUCE]["weighted"].traffic(problem, Plan("weighted", weights=weights)).pairs
    took = [int(sent) / rate for sent, rate in zip(pairs.sum(axis=1), rates, strict=True)]
    assert max(took) == 4 * elems / 25


@given(rates=st.lists(st.integers(1, 10**10), min_size=3, max_size=16))
def test_weights_let_every_link_be_done_within_the_bound_of_the_whole(rates):
    """Of links that count for no more than they may."""
    size, weights = len(rates), weights_of(rates) or (1,) * len(rates)
    rates = [min(rate, FAST_MAX * statistics.median_low(rates)) for rate in rates]
    time = max(1 / min(rates), 2 * (size - 1) / sum(rates))
    for rate, weight in zip(rates, weights, strict=True):
        assert (1 + (size - 2) * weight / sum(weights)) / rate <= time * 1.03


@given(rate=st.integers(1, 10**10), size=st.integers(1, 16))
def test_equal_links_and_pairs_need_no_weights(rate, size):
    assert weights_of([rate] * size) == ()
    assert weights_of([rate, 3 * rate]) == ()


@pytest.mark.parametrize(("sites", "crossing"), [((0, 0, 1, 1), 1.0), ((0, 1, 0, 1), 1.0), ((0, 0, 1, 1, 2, 2), 4 / 3)])
def test_between_sites_an_all_reduce_carries_what_as_many_ranks_would(sites, crossing):
    elems = 16 * 4800
    problem = Problem(
        operation=Operation.ALLREDUCE, rank=0, size=len(sites), item_bytes=4, counts=(elems,), chunk_bytes=4096
    )
    pairs = ALGORITHMS[Operation.ALLREDUCE]["two_level"].traffic(problem, Plan("two_level", sites=sites)).pairs
    there = np.array(sites)
    for site in set(sites):
        out = pairs[there == site][:, there != site].sum()
        assert out == pytest.approx(crossing * 4 * elems, rel=0.02)


@pytest.mark.parametrize(("delegates", "talking"), [(1, 1), (2, 2), (0, 3)])
def test_between_two_sites_delegates_alone_talk_to_each_other(delegates, talking):
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=6, item_bytes=4, counts=(144_000,), chunk_bytes=6400)
    plan = Plan("two_level", sites=(0, 0, 0, 1, 1, 1), delegates=delegates)
    across = ALGORITHMS[Operation.ALLREDUCE]["two_level"].traffic(problem, plan).pairs[:3, 3:]
    assert across[:talking, :talking].min() > 0
    assert across.sum() == across[:talking, :talking].sum() == 4 * 144_000


@pytest.mark.parametrize("operation", [Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER])
def test_between_two_sites_every_pair_of_ranks_carries_an_equal_part(operation):
    sites, counts = (0, 0, 0, 1, 1, 1), (9 * 1600,) * 6
    problem = Problem(
        operation=operation,
        rank=0,
        size=6,
        item_bytes=4,
        counts=(9 * 16_000,) if operation is Operation.ALLREDUCE else counts,
        receive_counts=counts if operation is Operation.ALL_GATHER else (),
        chunk_bytes=6400,
    )
    pairs = ALGORITHMS[operation]["two_level"].traffic(problem, Plan("two_level", sites=sites)).pairs
    assert pairs[:3, 3:].min() == pairs[:3, 3:].max() > 0
