"""Pairs follow a ring along the shortest links, and A2CiD2 reaches consensus on it before plain gossip does."""

from __future__ import annotations

import math
import random

import pytest
import torch

from integrations.volatile import gossip
from integrations.volatile.a2cid2 import approach, exchanged
from integrations.volatile.fragments import Fragment
from integrations.volatile.gossip import Pace, Ring

PLAIN = Pace(kept=1.0, pull=0.5)
"""A shadow that stays with its member: averaging in pairs, and nothing else."""


def costs_of(sites: list[int], *, seed: int = 0) -> list[list[int]]:
    """About 100 µs within a site and 40 ms between two, never twice the same."""
    source, size = random.Random(seed), len(sites)
    found = [[0] * size for _ in sites]
    for one in range(size):
        for two in range(one + 1, size):
            near = sites[one] == sites[two]
            found[one][two] = found[two][one] = (100 if near else 40_000) + source.randrange(100)
    return found


@pytest.mark.parametrize("size", range(1, 18))
def test_each_rank_is_in_the_ring_once_has_two_neighbours_and_it_is_never_the_complete_graph(size: int) -> None:
    found = gossip.ring(costs_of([0] * size))
    assert sorted(found.order) == list(range(size))
    assert len(found.edges) == len({frozenset(one) for one in found.edges})
    if size > 2:
        assert len(found.edges) < size * (size - 1) / 2
        assert {sum(rank in pair for pair in found.edges) for rank in range(size)} == ({2} if size > 3 else {1, 2})


@pytest.mark.parametrize("seed", range(20))
def test_a_ring_over_two_sites_crosses_from_one_to_the_other_twice(seed: int) -> None:
    sites = [0, 1] * 4
    found = gossip.ring(costs_of(sites, seed=seed))
    assert sum(sites[one] != sites[two] for one, two in found.edges) == 2


@pytest.mark.parametrize("size", range(2, 18))
def test_pairs_name_each_other_and_each_edge_has_its_turn(size: int) -> None:
    found = gossip.ring(costs_of([0] * size))
    met: set[frozenset[int]] = set()
    for event in range(6):
        for rank in range(size):
            partner = found.partner(rank, event)
            if partner is not None:
                assert found.partner(partner, event) == rank != partner
                met.add(frozenset({rank, partner}))
    assert met == {frozenset(one) for one in found.edges}


@pytest.mark.parametrize("size", [4, 5, 8, 16])
def test_the_constants_of_a_ring_are_those_of_its_laplacian_in_closed_form(size: int) -> None:
    c1 = 1.0 / (0.5 * (2.0 - 2.0 * math.cos(2.0 * math.pi / size)))
    c2 = 0.5 * 2.0 * (size - 1) / size  # an edge beside the way around, each of resistance 2
    found = gossip.pace(gossip.ring(costs_of([0] * size)).edges, size=size)
    assert math.isclose(found.kept, math.exp(-1.0 / math.sqrt(c1 * c2)))
    assert math.isclose(found.pull, 0.5 * math.sqrt(c1 / c2))


def test_where_two_exchange_with_nobody_else_the_shadow_has_nothing_to_gain() -> None:
    assert gossip.pace([(0, 1)], size=2).pull == pytest.approx(0.5)
    assert gossip.pace([], size=1) == PLAIN


def consensus_distance(size: int, pace: Pace, *, exchanges: int) -> float:
    """Mean squared distance from the mean, of members that begin with values of their own and do not train."""
    source = torch.Generator().manual_seed(size)
    members = [Fragment([torch.nn.Parameter(torch.randn(64, generator=source))]) for _ in range(size)]
    ahead = [torch.zeros(64) for _ in members]
    ring = Ring(tuple(range(size)))
    for event in range(exchanges):
        for rank in range(size):
            partner = ring.partner(rank, event)
            if partner is None or partner < rank:
                continue
            before = members[rank].read() + members[partner].read()
            for one in (rank, partner):
                approach(members[one], ahead[one], pace)
            mixed = members[rank].read() + members[partner].read()
            difference = members[partner].read() - members[rank].read()
            exchanged(members[rank], ahead[rank], difference, pace)
            exchanged(members[partner], ahead[partner], -difference, pace)
            torch.testing.assert_close(members[rank].read() + members[partner].read(), mixed)
            assert pace is not PLAIN or torch.allclose(before, mixed)
    values = torch.stack([one.read() for one in members])
    assert float(torch.stack(ahead).sum(0).abs().max()) < 1e-4  # over all members the shadows cancel out
    return float((values - values.mean(0)).square().mean())


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("rounds", [4, 8])
def test_on_a_ring_members_are_nearer_to_consensus_than_by_plain_gossip_after_as_many_exchanges(
    size: int, rounds: int
) -> None:
    pace = gossip.pace(Ring(tuple(range(size))).edges, size=size)
    events = rounds * size // 2
    assert consensus_distance(size, pace, exchanges=events) < consensus_distance(size, PLAIN, exchanges=events)
