"""The cost model on networks whose best algorithm is known on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transport.collectives.algorithms.registry import ALGORITHMS
from transport.collectives.calls import CallContext, allreduce
from transport.collectives.codecs import Codec
from transport.collectives.planning.cost_model import Choice, Network, choose, evaluate, problem_of
from transport.collectives.problem import Operation, Plan
from transport.collectives.reduce_op import ReduceOp

MBIT = 1_000_000
MIB = 2**20


def links(*rates_mbit: int, latency_us: int = 200) -> Network:
    rates = tuple(rate * MBIT for rate in rates_mbit)
    network = Network.uniform(len(rates), latency_us=latency_us)
    return replace(network, up_bits_per_s=rates, down_bits_per_s=rates)


def two_sites(ranks: int = 4, *, rate_mbit: int = 100, latency_us: int = 20_000) -> Network:
    """Half of the ranks here, half there, behind one link each."""
    sites = tuple(int(rank >= ranks // 2) for rank in range(ranks))
    latency = tuple(tuple(100 if here == there else latency_us for there in sites) for here in sites)
    return Network(
        up_bits_per_s=(1000 * MBIT,) * ranks,
        down_bits_per_s=(1000 * MBIT,) * ranks,
        latency_us=latency,
        sites=sites,
        site_up_bits_per_s=(rate_mbit * MBIT,) * 2,
        site_down_bits_per_s=(rate_mbit * MBIT,) * 2,
    )


def taken(choice: Choice) -> str:
    return choice.taken.plan.algorithm


def predicted(choice: Choice) -> dict[str, float]:
    return {one.plan.algorithm: one.predicted_s for one in choice.candidates}


def test_a_slow_link_takes_two_thirds_of_the_time_of_equal_shares():
    choice = choose(problem_of("all_reduce", nbytes=64 * MIB, size=4), links(100, 100, 100, 25))
    assert taken(choice) == "weighted"
    assert choice.taken.plan.weights == (1000, 1000, 1000, 0)
    times = predicted(choice)
    assert times["direct"] / times["weighted"] == pytest.approx(1.5, rel=0.01)
    assert times["weighted"] == pytest.approx(8 * 64 * MIB / 25e6, rel=0.01)
    assert choice.taken.bound == "link of rank 3"


def test_two_sites_send_each_tensor_across_once():
    choice = choose(problem_of("all_reduce", nbytes=16 * MIB, size=4), two_sites())
    assert taken(choice) == "two_level"
    assert choice.taken.plan.sites == (0, 0, 1, 1)
    assert choice.taken.predicted_s == pytest.approx(8 * 16 * MIB / 100e6, rel=0.05)
    assert predicted(choice)["direct"] == pytest.approx(2 * 8 * 16 * MIB / 100e6, rel=0.05)


@pytest.mark.parametrize(
    ("ranks", "rate_mbit", "codec", "delegates"),
    [
        (4, 100, Codec.NONE, 1),
        (8, 100, Codec.NONE, 1),
        (16, 100, Codec.NONE, 2),
        (8, 1000, Codec.NONE, 4),
        (8, 2000, Codec.NONE, 4),
        (4, 100, Codec.BFLOAT16, 1),
        (8, 100, Codec.INT8, 4),
        (16, 100, Codec.INT4, 8),
    ],
)
def test_as_few_ranks_of_a_site_talk_to_others_as_their_links_allow(ranks, rate_mbit, codec, delegates):
    network = two_sites(ranks, rate_mbit=rate_mbit)
    problem = problem_of("all_reduce", nbytes=16 * MIB, size=ranks, codec=codec)
    choice = choose(problem, network, forced="two_level")
    assert choice.taken.plan.delegates == delegates
    everybody = evaluate(problem, network, Plan("two_level", sites=network.sites))
    assert choice.taken.predicted_s == pytest.approx(everybody.predicted_s, rel=0.01)


def test_means_and_products_of_float16_do_not_go_by_site_for_a_sites_may_be_more_than_it_holds():
    problem = replace(problem_of("all_reduce", nbytes=16 * MIB, size=4), narrow=True)
    assert taken(choose(problem, two_sites())) == "direct"
    assert "two_level" not in predicted(choose(problem, two_sites(), forced="two_level"))
    calls = {
        (dtype, op): allreduce(CallContext(group="g", rank=0, size=2), torch.ones(4, dtype=dtype), op).problem.narrow
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
        for op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT)
    }
    assert [key for key, narrow in calls.items() if narrow] == [
        (torch.float16, ReduceOp.MEAN),
        (torch.float16, ReduceOp.PRODUCT),
    ]


def test_two_ranks_exchange_small_tensors_over_long_ways():
    small = problem_of("all_reduce", nbytes=4096, size=2)
    assert taken(choose(small, links(100, 100, latency_us=20_000))) == "exchange"
    choice = choose(problem_of("all_reduce", nbytes=16 * MIB, size=2), links(100, 25))
    assert (taken(choice), choice.reason) == ("direct", "exchange is not 20 % better")


def test_two_ranks_exchange_what_is_small_before_their_way_is_measured():
    for nbytes, name in ((4096, "exchange"), (16 * 1024, "exchange"), (16 * MIB, "direct")):
        assert taken(choose(problem_of("all_reduce", nbytes=nbytes, size=2), Network.uniform(2))) == name


def test_equal_links_take_equal_shares_also_where_measured_rates_differ_a_little():
    problem = problem_of("all_reduce", nbytes=16 * MIB, size=4)
    assert taken(choose(problem, links(100, 100, 100, 100))) == "direct"
    assert taken(choose(problem, links(100, 90, 100, 75))) == "direct"


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "barrier"])
def test_many_ranks_double_what_is_small(operation):
    network = links(*[10_000] * 32, latency_us=20)
    assert taken(choose(problem_of(operation, nbytes=1024, size=32), network)) == "doubling"


def test_a_small_broadcast_among_many_goes_along_a_tree_and_a_large_one_over_relays():
    network = links(*[10_000] * 32, latency_us=20)
    assert taken(choose(problem_of("broadcast", nbytes=1024, size=32), network)) == "tree"
    assert taken(choose(problem_of("broadcast", nbytes=64 * MIB, size=32), network)) == "direct"


def test_what_is_forced_is_taken_where_it_can_be():
    problem = problem_of("all_reduce", nbytes=MIB // 8, size=4)
    choice = choose(problem, links(100, 100, 100, 100), forced="doubling")
    assert (taken(choice), choice.reason) == ("doubling", "forced")
    choice = choose(problem, links(100, 100, 100, 100), forced="two_level")
    assert taken(choice) != "two_level"
    assert choice.reason == "two_level was asked for, but it is none of the candidates here"


@pytest.mark.parametrize("counts", [(1 << 28, 1, 1, 1), (1 << 17,) * 4])
def test_what_is_copied_whole_is_a_chunk_at_most(counts):
    problem = replace(problem_of("all_gather", nbytes=4, size=4), receive_counts=counts)
    choice = choose(problem, links(1000, 1000, 1000, 1000), forced="doubling")
    assert "doubling" not in [one.plan.algorithm for one in choice.candidates]


def test_a_network_of_another_size_is_an_error():
    with pytest.raises(ValueError, match="a network of 2 ranks for a collective of 3"):
        choose(problem_of("barrier", nbytes=0, size=3), Network.uniform(2))


def test_an_operation_without_a_choice_is_an_error_that_names_the_others():
    with pytest.raises(ValueError, match="all_to_all: one of all_reduce, broadcast"):
        problem_of("all_to_all", nbytes=4, size=2)


@given(
    rates=st.lists(st.integers(1, 10_000), min_size=1, max_size=9),
    nbytes=st.integers(0, 2**28),
    operation=st.sampled_from([one.name.lower().replace("allreduce", "all_reduce") for one in ALGORITHMS]),
)
def test_the_choice_is_nearly_the_shortest_and_no_link_is_faster_than_its_rate(rates, nbytes, operation):
    network = links(*rates)
    choice = choose(problem_of(operation, nbytes=nbytes, size=len(rates)), network)
    shortest = min(one.predicted_s for one in choice.candidates)
    assert shortest <= choice.taken.predicted_s <= 1.25 * shortest
    assert choice == choose(problem_of(operation, nbytes=nbytes, size=len(rates)), links(*rates))
    if operation == "all_reduce" and len(rates) > 1:
        assert choice.taken.predicted_s >= 8 * nbytes / (min(rates) * MBIT)


def test_every_operation_has_a_direct_algorithm():
    assert all("direct" in names for names in ALGORITHMS.values())
    assert set(Operation) - set(ALGORITHMS) == {Operation.GATHER, Operation.SCATTER, Operation.ALL_TO_ALL}
