"""What a rank can achieve that lies about its link: its group stays in agreement, and pays a bounded price."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_simulator import simulate

from transport.collectives.algorithms.registry import ALGORITHMS, schedule_of
from transport.collectives.algorithms.weighted import FAST_MAX
from transport.collectives.planning.agreement import FIXED, OPERATION, Row, agree, row_of
from transport.collectives.planning.cost_model import Network, choose, evaluate, operation_name, problem_of
from transport.collectives.planning.link_rates import LinkReport
from transport.collectives.planning.planner import AHEAD_MAX, LAG, Planner
from transport.collectives.problem import Operation, Plan, Problem

GBIT = 10**9
INT64 = st.integers(-(2**63), 2**63 - 1)
RATES = st.one_of(st.integers(1, 10**11), st.sampled_from([0, -1, 10**13, 2**63 - 1, -(2**63)]), INT64)


def rows_of(network: Network) -> list[Row]:
    """What honest ranks say on this network."""
    ranks = range(network.size)
    far = [rate // network.sites.count(site) for site, rate in enumerate(network.site_up_bits_per_s)]
    return [
        row_of(
            LinkReport(
                network.up_bits_per_s[rank],
                network.down_bits_per_s[rank],
                far[network.sites[rank]] if len(far) > 1 else 0,
                far[network.sites[rank]] if len(far) > 1 else 0,
                {other: 2 * network.latency_us[rank][other] for other in ranks if other != rank},
            ),
            ranks=ranks,
            table=Network.uniform(network.size),
            operation=0,
            site="",
            host=str(rank),
        )
        for rank in ranks
    ]


@st.composite
def networks(draw, *, size_min: int = 3) -> Network:
    """Any: links and round trips of any size, sites or none."""
    size = draw(st.integers(size_min, 16))
    rates = draw(st.lists(st.integers(1, 10**11), min_size=size, max_size=size))
    drawn = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    numbers = {site: number for number, site in enumerate(dict.fromkeys(drawn))}
    sites = tuple(numbers[site] for site in drawn)
    near, far = draw(st.integers(1, 999)), draw(st.integers(1001, 5_000_000))
    across = draw(st.lists(st.integers(16, 10**11), min_size=len(numbers), max_size=len(numbers)))
    return Network(
        up_bits_per_s=tuple(rates),
        down_bits_per_s=tuple(rates),
        latency_us=tuple(
            tuple(0 if one == other else near if sites[one] == sites[other] else far for other in range(size))
            for one in range(size)
        ),
        sites=sites,
        site_up_bits_per_s=tuple(across),
        site_down_bits_per_s=tuple(across),
    )


def flat(size: int, rates: Sequence[int]) -> Network:
    """Ranks of one place, each with its own link."""
    return Network(
        up_bits_per_s=tuple(rates),
        down_bits_per_s=tuple(rates),
        latency_us=tuple(tuple(0 if one == other else 100 for other in range(size)) for one in range(size)),
        sites=(0,) * size,
        site_up_bits_per_s=(sum(rates),),
        site_down_bits_per_s=(sum(rates),),
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data(), size=st.integers(3, 16), rate=st.integers(10**6, 10**11))
def test_a_rank_that_lies_costs_the_others_a_few_times_the_direct_algorithm_at_most(data, size, rate):
    """Of equal links, where a lie cannot hide behind what is unequal anyway."""
    honest = flat(size, [rate] * size)
    rows = rows_of(honest)
    for rank in data.draw(st.sets(st.integers(1, size - 1))):
        rows[rank][:4] = 0  # it has measured nothing yet
    rows[0] = np.array(
        [*data.draw(st.lists(RATES, min_size=FIXED, max_size=FIXED)), *data.draw(st.tuples(*[INT64] * size))]
    )
    believed = agree(rows, Network.uniform(size), number=1)
    for operation in ALGORITHMS:
        problem = problem_of(operation_name(operation), nbytes=data.draw(st.integers(1, 2**28)), size=size)
        plan = choose(problem, believed).taken.plan
        taken, direct = (evaluate(problem, honest, one).predicted_s for one in (plan, Plan()))
        assert taken <= 1.01 * FAST_MAX * direct


def test_a_rank_that_claims_any_rate_is_given_no_more_than_four_times_the_work_of_equal_shares():
    elems = 2**24
    for size in (3, 4, 8, 16):
        for claimed in (0, -1, 1, 10**13, 2**63 - 1):
            rows = rows_of(flat(size, [GBIT] * size))
            rows[1][:2] = claimed
            table = agree(rows, Network.uniform(size), number=1)
            problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(elems,))
            choice = choose(problem, table, forced="weighted")
            pairs = ALGORITHMS[Operation.ALLREDUCE]["direct"].traffic(problem, choice.taken.plan).pairs
            equal = 2 * (size - 1) / size * 4 * elems
            assert pairs.sum(axis=1).max() <= FAST_MAX * equal


def test_of_a_round_trip_the_shorter_figure_counts_and_one_side_alone_where_the_other_has_none():
    honest = flat(4, [GBIT] * 4)
    rows = rows_of(honest)
    rows[3][FIXED:] = 2**62
    assert agree(rows, Network.uniform(4), number=1).latency_us == honest.latency_us
    rows[3][FIXED:] = 0
    assert agree(rows, Network.uniform(4), number=1).latency_us == honest.latency_us


def agreements(planners: Sequence[Planner], *, until: int, lie: int | None) -> list[int]:
    """Let ranks go on side by side, the last of which says that each agreement begins with the operation `lie`.

    Returns:
        The operations with which agreements began.
    """
    began = []
    report = LinkReport(GBIT, GBIT, 0, 0, {})
    problem = problem_of("all_reduce", nbytes=2**20, size=len(planners))
    for number in range(until):
        if planners[0].is_due(number, lambda _far: report, now_s=1 + 0.02 * number):
            began.append(number)
            rows = [planner.begin(number, lambda _far: report) for planner in planners]
            if lie is not None:
                rows[-1][OPERATION] = lie
            for planner in planners:
                planner.agreed(rows)
        assert all(planner.choice(problem, number) is not None for planner in planners)
    return began


@pytest.mark.parametrize("lie", [2**63 - 1, 2**60, 10**6, -(2**63), -1])
def test_a_rank_that_lies_about_its_operation_delays_agreements_and_ends_none(lie):
    planners = [Planner(ranks=range(3), rank=rank, forced="", site="", host="x") for rank in range(3)]
    began = agreements(planners, until=4000, lie=lie)
    apart = [later - one for one, later in itertools.pairwise(began)]
    assert apart
    assert max(apart) <= 2 * AHEAD_MAX + LAG


def test_no_two_tables_of_a_group_have_the_same_number_whatever_a_rank_says():
    planners = [Planner(ranks=range(3), rank=rank, forced="", site="", host="x") for rank in range(3)]
    numbers = []
    for turn, operation in enumerate((0, 2 + AHEAD_MAX, 3 * AHEAD_MAX)):
        report = LinkReport(GBIT << turn, GBIT << turn, 0, 0, {})
        rows = [planner.begin(operation, lambda _far, report=report: report) for planner in planners]
        rows[0][OPERATION] = 2**63 - 1
        for planner in planners:
            planner.agreed(rows)
        assert len({planner.table for planner in planners}) == 1
        numbers.append(planners[0].table.number)
    assert numbers == sorted(set(numbers))
    assert numbers[0] == AHEAD_MAX + LAG


@settings(max_examples=60, deadline=None)
@given(data=st.data(), network=networks(size_min=1), seed=st.integers(0, 2**32))
def test_on_any_network_every_rank_takes_the_same_plan_and_all_end_with_the_same_bits(data, network, seed):
    size, elems = network.size, data.draw(st.integers(0, 400))
    rows = rows_of(network)
    if size > 1 and data.draw(st.booleans()):
        rows[seed % size] = np.array(data.draw(st.tuples(*[INT64] * (FIXED + size))))
    table = agree(rows, Network.uniform(size), number=1)
    # As a large tensor is done: what is small takes one of two ways on most networks.
    nbytes = data.draw(st.sampled_from([4 * elems, 2**20, 2**28]))
    plan = choose(problem_of("all_reduce", nbytes=nbytes, size=size), table).taken.plan
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(elems,), chunk_bytes=512)
    inputs = [np.random.default_rng(seed + rank).standard_normal(elems).astype("f4") for rank in range(size)]
    buffers = [[one.copy()] for one in inputs]
    simulate([schedule_of(replace(problem, rank=rank), plan) for rank in range(size)], buffers, seed=seed)
    assert len({result.tobytes() for (result,) in buffers}) == 1
    assert np.allclose(buffers[0][0], np.sum(inputs, axis=0), atol=1e-4)
