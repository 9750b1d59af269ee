"""Which table of links holds for which operation: measured, agreed on, and the same on every rank."""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import wait_until

from hive_qos.errors import CancelledError, ConfigurationError, ConnectionLostError, PeerError, TimedOutError
from transport import Settings
from transport.collectives.algorithms.registry import schedule_of
from transport.collectives.membership import agreement_group
from transport.collectives.planning.agreement import FIXED, OPERATION, agree, row_of
from transport.collectives.planning.cost_model import Network, choose
from transport.collectives.planning.link_rates import (
    SLOT_S,
    WINDOW_SLOTS,
    WINDOWS_KEPT,
    LinkRates,
    LinkReport,
    together,
)
from transport.collectives.planning.planner import AHEAD_MAX, CHOICES_KEPT, LAG, LOOK_EVERY_S, Planner, Report
from transport.collectives.problem import Operation, Problem
from transport.engine.base import ConnectionStatistics

MBIT = 1_000_000


def link(mbit: int, *, rtt_us: dict[int, int], far_mbit: int = 0) -> LinkReport:
    return LinkReport(mbit * MBIT, mbit * MBIT, far_mbit * MBIT, far_mbit * MBIT, rtt_us)


def rows_of(
    reports: list[LinkReport], *, table: Network, sites: list[str] | None = None, hosts: str = ""
) -> list[np.ndarray]:
    ranks = range(len(reports))
    names, machines = sites or [""] * len(reports), list(hosts) or list(map(str, ranks))
    return [
        row_of(report, ranks=ranks, table=table, operation=5, site=name, host=host)
        for report, name, host in zip(reports, names, machines, strict=True)
    ]


def near_and_far(rank: int) -> dict[int, int]:
    """Ranks 0 and 1 are in one place, 2 and 3 in another."""
    return {other: 300 if other // 2 == rank // 2 else 40_000 for other in range(4) if other != rank}


@pytest.mark.parametrize(
    ("hosts", "sites"), [("aabb", (0, 0, 1, 1)), ("abaa", (0, 1, 0, 0)), ("abcd", (0, 0, 0, 0)), ("aaaa", (0, 0, 0, 0))]
)
def test_hosts_of_several_ranks_in_one_place_count_as_sites(hosts: str, sites: tuple[int, ...]):
    near = [{other: 200 for other in range(4) if other != rank} for rank in range(4)]
    rows = rows_of([link(900, rtt_us=one) for one in near], table=Network.uniform(4), hosts=hosts)
    assert agree(rows, Network.uniform(4), number=1).sites == sites
    apart = rows_of([link(900, rtt_us=near_and_far(rank)) for rank in range(4)], table=Network.uniform(4), hosts="abab")
    assert agree(apart, Network.uniform(4), number=1).sites == (0, 0, 1, 1)


def test_where_several_ranks_share_a_hosts_link_a_large_tensor_crosses_it_once():
    eight_each = "a" * 8 + "b" * 8
    reports = [link(900, rtt_us={other: 200 for other in range(16) if other != rank}) for rank in range(16)]
    network = agree(rows_of(reports, table=Network.uniform(16), hosts=eight_each), Network.uniform(16), number=1)
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=16, item_bytes=4, counts=(16 * 2**20,))
    assert choose(problem, network).taken.plan.algorithm == "two_level"
    assert choose(problem, Network.uniform(16)).taken.plan.algorithm == "direct"


def test_sites_are_found_from_round_trips_and_their_links_from_what_crossed():
    reports = [link(900, rtt_us=near_and_far(rank), far_mbit=48) for rank in range(4)]
    table = agree(rows_of(reports, table=Network.uniform(4)), Network.uniform(4), number=1)
    assert table.sites == (0, 0, 1, 1)
    assert table.site_up_bits_per_s == (96 * MBIT, 96 * MBIT)
    assert table.latency_us[0] == (0, 150, 20_000, 20_000)


def test_what_is_large_crosses_once_before_any_rate_is_known():
    reports = [link(0, rtt_us=near_and_far(rank)) for rank in range(4)]
    table = agree(rows_of(reports, table=Network.uniform(4)), Network.uniform(4), number=1)
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=4, item_bytes=4, counts=(2**22,))
    assert choose(problem, table).taken.plan.algorithm == "two_level"


def test_sites_that_all_ranks_name_are_taken_and_one_name_alone_is_not():
    reports = [link(100, rtt_us=near_and_far(rank)) for rank in range(4)]
    rows = rows_of(reports, table=Network.uniform(4), sites=["a", "b", "a", "b"])
    assert agree(rows, Network.uniform(4), number=1).sites == (0, 1, 0, 1)
    rows = rows_of(reports, table=Network.uniform(4), sites=["a", "", "", ""])
    assert agree(rows, Network.uniform(4), number=1).sites == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("mbit", "nbytes", "weights"),
    [
        ((1000,) * 4, 32 * 1024, ()),
        ((100,) * 4, 32 * 1024, (1, 1, 1, 1)),
        ((100,) * 4, 1024, ()),
        ((1000,) * 8, 32 * 1024, ()),
        ((100,) * 64, 32 * 1024, (1,) * 64),
        ((100, 100, 100, 25), 16 * 1024, (1000, 1000, 1000, 0)),
    ],
)
def test_a_small_tensor_is_cut_where_its_bytes_take_longer_than_more_messages(
    mbit: tuple[int, ...], nbytes: int, weights: tuple[int, ...]
) -> None:
    size = len(mbit)
    reports = [link(rate, rtt_us=dict.fromkeys(range(size), 200)) for rate in mbit]
    table = agree(rows_of(reports, table=Network.uniform(size)), Network.uniform(size), number=1)
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(nbytes // 4,), turn=3)
    choice = choose(problem, table)
    plan = choice.taken.plan
    assert plan.weights == weights
    if plan.algorithm != "doubling":
        pairs = sum(len(schedule_of(replace(problem, rank=rank), plan).sent_bytes) for rank in range(size))
        assert pairs == (size * (size - 1) if weights else 2 * (size - 1))
    direct = next(one for one in choice.candidates if one.plan.algorithm == "direct")
    assert direct.predicted_s > sum(8 * (size - 1) * nbytes / (rate * MBIT) for rate in mbit) / size, "its owner's link"


def test_a_link_that_was_never_the_slow_one_counts_as_fast_and_ranks_without_round_trips_are_apart():
    reports = [link(mbit, rtt_us={}) for mbit in (100, 0, 25)]
    table = agree(rows_of(reports, table=Network.uniform(3)), Network.uniform(3), number=1)
    assert table.up_bits_per_s == (100 * MBIT, 1000 * MBIT, 25 * MBIT)
    assert table.sites == (0, 1, 2)
    reports = [link(mbit, rtt_us={}) for mbit in (5000, 0, 25)]
    table = agree(rows_of(reports, table=table), table, number=2)
    assert table.up_bits_per_s == (5000 * MBIT, 5000 * MBIT, 25 * MBIT)


@pytest.mark.parametrize(("mbit", "number"), [(101, 1), (120, 1), (80, 1), (25, 2), (200, 2)])
def test_a_table_is_replaced_when_a_rate_changes_by_more_than_the_band(mbit, number):
    def table_of(rate: int, previous: Network) -> Network:
        reports = [link(100, rtt_us={}), link(100, rtt_us={}), link(rate, rtt_us={})]
        return agree(rows_of(reports, table=previous), previous, number=previous.number + 1)

    first = table_of(100, Network.uniform(3))
    assert table_of(mbit, first).number == number


@pytest.mark.parametrize(("rtt_us", "number"), [(40_000, 1), (36_000, 1), (44_000, 1), (20_000, 2)])
def test_a_table_is_replaced_when_a_latency_is_known_at_last_or_another_one(rtt_us, number):
    def table_of(rtt_us: int, previous: Network) -> Network:
        reports = [link(100, rtt_us={other: rtt_us for other in range(3) if other != rank}) for rank in range(3)]
        return agree(rows_of(reports, table=previous), previous, number=previous.number + 1)

    unknown = table_of(0, Network.uniform(3))
    known = table_of(40_000, unknown)
    assert (unknown.number, known.number, known.sites) == (1, 2, unknown.sites)
    first = replace(known, number=1)
    assert table_of(rtt_us, first).number == number


def test_ranks_that_held_different_tables_all_take_the_new_one():
    reports = [link(100, rtt_us={}) for _ in range(3)]
    first = agree(rows_of(reports, table=Network.uniform(3)), Network.uniform(3), number=1)
    other = replace(first, up_bits_per_s=(1, 2, 3), number=5)
    rows = [rows_of(reports, table=table)[rank] for rank, table in enumerate((first, first, other))]
    assert agree(rows, first, number=6) == agree(rows, other, number=6)
    assert agree(rows, first, number=6).number == 6


@given(data=st.data(), size=st.integers(2, 5))
def test_whatever_ranks_say_of_their_links_there_is_a_table_and_a_choice(data, size):
    numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=FIXED + size, max_size=FIXED + size)
    rows = [np.array(data.draw(numbers), dtype=np.int64) for _ in range(size)]
    table = agree(rows, Network.uniform(size), number=1)
    assert all(rate > 0 for rate in (*table.up_bits_per_s, *table.down_bits_per_s, *table.site_up_bits_per_s))
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(10**6,))
    choice = choose(problem, table)
    assert choice.taken.predicted_s > 0
    assert schedule_of(problem, choice.taken.plan).rows


@settings(max_examples=10)
@given(data=st.data(), size=st.integers(2, 6), seed=st.integers(0, 2**32))
def test_all_ranks_use_the_same_table_for_an_operation_however_far_one_is_ahead(data, size, seed):
    """Each rank goes on as fast as it likes; an agreement is over when all have given their row."""
    choose = random.Random(seed)
    planners = [Planner(ranks=range(size), rank=rank, forced="", site="", host="x") for rank in range(size)]
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=size, item_bytes=4, counts=(10**6,))
    turn = [0] * size
    clocks = [choose.choice((0.01, 0.1, 1.0)) for _ in range(size)]
    given_rows: list[list[np.ndarray]] = [[] for _ in range(size)]
    ended = [0] * size
    used: list[dict[int, Any]] = [{} for _ in range(size)]
    rates = data.draw(st.permutations([10, 100, 1000]))

    def report(rank: int) -> Report:
        mbit = rates[turn[rank] // 20 % len(rates)] * (1 + rank)
        return lambda _far: link(mbit, rtt_us={})

    for _ in range(3000):
        rank = choose.randrange(size)
        planner = planners[rank]
        if ended[rank] < len(given_rows[rank]) and all(len(rows) > ended[rank] for rows in given_rows):
            planner.agreed([rows[ended[rank]] for rows in given_rows])
            ended[rank] += 1
            continue
        invited = any(len(rows) > len(given_rows[rank]) for rows in given_rows)
        now_s = clocks[rank] * turn[rank] + 1
        if planner.is_due(turn[rank], report(rank), now_s=now_s, invited=invited and choose.random() < 0.5):
            given_rows[rank].append(planner.begin(turn[rank], report(rank)))
        choice = planner.choice(problem, turn[rank])
        if choice is None:
            continue
        used[rank][turn[rank]] = (choice.taken.plan, choice.network_number)
        turn[rank] += 1
    shared = min(turn)
    assert shared > LAG
    for number in range(shared):
        assert len({used[rank][number] for rank in range(size)}) == 1
    assert max(ended) > 1


def agreements(measured: list[list[int]], *, rank: int = 0) -> list[int]:
    """Have three ranks do an operation for each row of rates (Mbit/s) that they measured, 0.1 s each.

    Returns:
        The operations with which one of them began an agreement.
    """
    planner, due = Planner(ranks=range(3), rank=rank, forced="", site="", host="x"), []
    for number, rates in enumerate(measured):
        reports = [lambda _far, mbit=mbit: link(mbit, rtt_us={}) for mbit in rates]
        if planner.is_due(number, reports[rank], now_s=1 + 0.1 * number):
            due.append(number)
            others = [Planner(ranks=range(3), rank=other, forced="", site="", host="x") for other in range(3)]
            rows = [other.begin(number, report) for other, report in zip(others, reports, strict=True)]
            rows[rank] = planner.begin(number, reports[rank])
            planner.agreed(rows)
    return due


LOOK = round(LOOK_EVERY_S / 0.1)


def test_ranks_agree_once_a_link_is_known_and_again_when_it_has_changed():
    measured = [[0] * 3] * 7 + [[100, 100, 25]] * 40 + [[25, 100, 25]] * 40
    due = agreements(measured)
    assert len(due) == 3
    assert due[0] == 0
    assert 7 <= due[1] <= 7 + LOOK
    assert 47 <= due[2] <= 47 + LOOK


def test_whose_link_has_not_changed_leaves_it_to_the_others_to_begin():
    assert agreements([[100, 100, 25]] * 20 + [[25, 100, 25]] * 40, rank=1) == [0]


def test_rates_that_move_within_the_band_and_what_is_not_measured_are_no_reason_to_agree():
    moving = [[100 + number % 20, 100, 25] for number in range(100)]
    assert agreements(moving) == [0]
    assert agreements([[0] * 3] * 100) == [0]


def test_ranks_that_were_bound_by_their_own_links_ask_as_soon_as_they_are_no_more():
    """Each has heard of the other that it was: none of them may wait for the other's news."""
    planners = [Planner(ranks=range(3), rank=rank, forced="", site="", host="x") for rank in range(3)]

    def asking(*, lately: bool, now_s: float) -> list[int]:
        bound = replace(link(40, rtt_us={}), full_lately=lately)
        reports = [bound, bound, replace(bound, full=False, full_lately=False)]
        number = max(one.table.number for one in planners)
        asked = [
            rank
            for rank in range(3)
            if planners[rank].is_due(number, lambda _far, rank=rank: reports[rank], now_s=now_s)
        ]
        if asked:
            rows = [planners[rank].begin(number, lambda _far, rank=rank: reports[rank]) for rank in range(3)]
            for one in planners:
                one.agreed(rows)
        return asked

    assert asking(lately=True, now_s=1.0) == [0, 1, 2]
    assert planners[2].table.up_bits_per_s == (40 * MBIT, 40 * MBIT, 1000 * MBIT)
    assert asking(lately=True, now_s=2.0) == []
    assert asking(lately=False, now_s=3.0) == [0, 1]
    assert planners[2].table.up_bits_per_s == (40 * MBIT,) * 3
    assert asking(lately=False, now_s=4.0) == []


def test_a_round_trip_that_makes_two_sites_one_is_a_reason_to_agree():
    planner = Planner(ranks=range(3), rank=0, forced="", site="", host="x")
    far = [link(0, rtt_us={other: 5000 for other in range(3) if other != rank}) for rank in range(3)]
    assert planner.is_due(0, lambda _far: far[0], now_s=1.0)
    planner.begin(0, lambda _far: far[0])
    planner.agreed(rows_of(far, table=planner.table))
    assert planner.table.sites == (0, 1, 2)
    now_s = 1.0 + LOOK_EVERY_S
    number = planner.table.number
    assert not planner.is_due(number, lambda _far: far[0], now_s=now_s)
    near = link(0, rtt_us={1: 300, 2: 5000})
    assert planner.is_due(number, lambda _far: near, now_s=now_s + LOOK_EVERY_S)


def test_who_is_invited_before_the_last_table_holds_takes_part_and_keeps_to_each_table_for_its_operations():
    planner = Planner(ranks=range(3), rank=2, forced="", site="", host="x")
    behind = link(25, rtt_us={})
    row = planner.begin(0, lambda _far: behind)
    ahead = row.copy()
    ahead[OPERATION] = 10
    planner.agreed([ahead, row, row])
    assert not planner.is_due(1, lambda _far: behind, now_s=100.0)
    assert planner.is_due(1, lambda _far: behind, now_s=100.0, invited=True)
    assert planner.begin(1, lambda _far: behind)[OPERATION] == 10 + LAG
    problem = Problem(operation=Operation.ALLREDUCE, rank=2, size=3, item_bytes=4, counts=(10**6,))
    numbers = [choice and choice.network_number for choice in (planner.choice(problem, n) for n in (5, 10, 11, 12))]
    assert numbers == [0, 0, 11, None]


def test_nobody_goes_on_without_an_agreement_for_longer_than_others_believe_it():
    due = agreements([[100] * 3] * 2000)
    assert due == list(range(0, 2000, AHEAD_MAX + LAG))


@pytest.mark.parametrize(("size", "agrees"), [(1, False), (2, True)])
def test_a_rank_alone_never_agrees_and_two_do(size: int, agrees: bool):
    planner = Planner(ranks=range(size), rank=0, forced="", site="", host="x")
    due = [planner.is_due(number, lambda _far: link(100, rtt_us={}), now_s=number) for number in range(1000)]
    assert due == [agrees] * 1000


@pytest.mark.parametrize(
    ("mbit", "rtt_us", "nbytes", "name"),
    [
        (100, 20_000, 64 * 1024, "exchange"),
        (100, 40_000, 256 * 1024, "exchange"),
        (0, 20_000, 64 * 1024, "exchange"),
        (100, 20_000, 2**20, "direct"),
        (1000, 200, 256 * 1024, "direct"),
        (8000, 60, 64 * 1024, "exchange"),
        (8000, 60, 2**20, "direct"),
    ],
)
def test_two_ranks_exchange_the_more_the_longer_and_faster_their_way_is(mbit: int, rtt_us: int, nbytes: int, name: str):
    reports = [link(mbit, rtt_us={1 - rank: rtt_us}, far_mbit=mbit if rtt_us > 2000 else 0) for rank in range(2)]
    table = agree(rows_of(reports, table=Network.uniform(2)), Network.uniform(2), number=1)
    problem = Problem(operation=Operation.ALLREDUCE, rank=0, size=2, item_bytes=4, counts=(nbytes // 4,))
    assert choose(problem, table).taken.plan.algorithm == name


def statistics(*, delivered: int, received: int) -> ConnectionStatistics:
    return ConnectionStatistics(
        peer="",
        remote=("127.0.0.1", 1),
        bulk=False,
        rtt_s=0.02,
        rtt_s_min=0.01,
        rtt_latest_s=0.02,
        congestion_window_bytes=0,
        sent_bytes=delivered,
        received_bytes=received,
        delivered_bytes=delivered,
        lost_packets=0,
        sent_packets=0,
        delivery_rate_bits_per_s=0,
        application_limited=False,
        path_mtu_bytes=1200,
    )


class Link:
    """Carries so much to and from ranks 1 and 2, half each, and is sampled as it is while collectives run."""

    def __init__(self) -> None:
        self.rates, self.now_s, self.sent, self.received = LinkRates(), 100.0, 0, 0

    def carry(self, *, up_mbit: int, down_mbit: int, slots: int = 1, took_s: float = SLOT_S) -> None:
        for _ in range(slots):
            self.now_s += took_s
            self.sent += int(up_mbit * MBIT / 8 * took_s / 2)
            self.received += int(down_mbit * MBIT / 8 * took_s / 2)
            one = statistics(delivered=self.sent, received=self.received)
            self.rates.sample(self.now_s, {1: one, 2: one})

    def report(self, *far: int) -> LinkReport:
        return self.rates.report(frozenset(far))


def test_a_link_s_rate_is_the_most_of_its_last_busy_windows_over_all_peers():
    link = Link()
    for mbit in (40, 100, 60):
        link.carry(up_mbit=mbit, down_mbit=2 * mbit, slots=2 * WINDOW_SLOTS)
    report = link.report()
    assert report.up_bits_per_s == pytest.approx(100 * MBIT, rel=0.01)
    assert report.down_bits_per_s == pytest.approx(200 * MBIT, rel=0.01)
    assert link.report(2).far_up_bits_per_s == pytest.approx(50 * MBIT, rel=0.01)
    assert report.rtt_us == {1: 10_000, 2: 10_000}
    link.carry(up_mbit=25, down_mbit=25, slots=WINDOWS_KEPT + WINDOW_SLOTS)
    assert link.report().up_bits_per_s == pytest.approx(25 * MBIT, rel=0.01)


def test_a_link_that_idles_between_bursts_is_not_taken_for_a_slow_one():
    link = Link()
    link.carry(up_mbit=100, down_mbit=100, slots=WINDOW_SLOTS + 1)
    for _ in range(WINDOWS_KEPT):
        link.carry(up_mbit=100, down_mbit=10)
        link.carry(up_mbit=0, down_mbit=10)
    link.carry(up_mbit=1000, down_mbit=1000, took_s=10.0)  # across an idle time
    assert link.report().up_bits_per_s == pytest.approx(100 * MBIT, rel=0.01)
    assert link.report().down_bits_per_s == pytest.approx(10 * MBIT, rel=0.01)


def test_a_link_that_acknowledges_a_broadcast_is_not_taken_for_a_slow_one():
    root, leaf = Link(), Link()
    root.carry(up_mbit=100, down_mbit=3, slots=WINDOWS_KEPT)
    leaf.carry(up_mbit=3, down_mbit=100, slots=WINDOWS_KEPT)
    assert (root.report().down_bits_per_s, leaf.report().up_bits_per_s) == (0, 0)
    assert root.report().up_bits_per_s == leaf.report().down_bits_per_s == pytest.approx(100 * MBIT, rel=0.01)


def carry_to(rates: LinkRates, mbit_of_peers: list[dict[int, int]], limited: list[set[int]] | None = None) -> None:
    """One slot for each item: how much goes to each peer, and comes from it.

    Args:
        limited: of each slot the peers for whom there was not always something left to send; none without.
    """
    sent, rtt_s = dict.fromkeys(mbit_of_peers[0], 0), {1: 0.0003, 2: 0.04, 3: 0.04}
    for number, slot in enumerate(mbit_of_peers):
        waits = limited[number] if limited else set()
        for peer, mbit in slot.items():
            sent[peer] += int(mbit * MBIT / 8 * SLOT_S)
        connections = {
            peer: replace(
                statistics(delivered=nbytes, received=nbytes),
                rtt_s_min=rtt_s[peer],
                application_limited=peer in waits,
            )
            for peer, nbytes in sent.items()
        }
        rates.sample(100.0 + number * SLOT_S, connections)


def test_a_fast_link_that_waits_for_a_slow_peer_is_not_taken_for_a_slow_one():
    rates = LinkRates()
    to_all, to_the_slow_one = {1: 46, 2: 46, 3: 8}, {1: 0, 2: 0, 3: 8}
    carry_to(rates, [{1: 0, 2: 0, 3: 0}] * 2 + [to_all] * 10 + [to_the_slow_one] * 2 * WINDOWS_KEPT)
    report = rates.report(frozenset())
    assert report.up_bits_per_s == report.down_bits_per_s == pytest.approx(100 * MBIT, rel=0.01)


def test_what_a_link_carries_while_its_rank_waits_for_others_says_only_that_it_may_be_faster():
    waiting, full, faster = {1: 11, 2: 11, 3: 8}, {1: 46, 2: 46, 3: 8}, {1: 70, 2: 70, 3: 10}
    phases = [({1: 0, 2: 0, 3: 0}, set[int](), 2), (waiting, {1, 2}, 20), (full, set[int](), 10)]
    phases += [(waiting, {1, 2}, 2 * WINDOWS_KEPT), (faster, {1, 2, 3}, 10)]
    for count, mbit in ((2, 30), (3, 100), (4, 100), (5, 150)):
        rates = LinkRates()
        slots = [(slot, waits) for slot, waits, times in phases[:count] for _ in range(times)]
        carry_to(rates, [slot for slot, _ in slots], [waits for _, waits in slots])
        report = rates.report(frozenset())
        assert report.up_bits_per_s == report.down_bits_per_s == pytest.approx(mbit * MBIT, rel=0.01)
        assert (report.full, report.full_lately) == (count > 2, count == 3)


@pytest.mark.parametrize(("full", "lately"), [(True, True), (True, False), (False, False)])
def test_who_waits_for_the_others_is_not_the_slow_one_while_another_is_bound_by_its_own_link(full: bool, lately: bool):
    """Else all keep what they once carried: who gets most, as if its link was the fastest, may be what all wait for."""
    waits = replace(link(30, rtt_us={}), full=False, full_lately=False)
    reports = [replace(link(25, rtt_us={}), full=full, full_lately=lately), waits, waits]
    table = agree(rows_of(reports, table=Network.uniform(3)), Network.uniform(3), number=1)
    others = 1000 * MBIT if lately else 30 * MBIT
    assert table.up_bits_per_s == table.down_bits_per_s == (25 * MBIT, others, others)


@pytest.mark.parametrize("peers", [(1,), (1, 2)])
def test_what_goes_through_shared_memory_fills_a_link(peers: tuple[int, ...]):
    rates = LinkRates()
    for number in range(3 * WINDOW_SLOTS):
        one = replace(statistics(delivered=0, received=0), application_limited=True)
        one = replace(one, shared_sent_bytes=number * 10**6, shared_received_bytes=number * 10**6)
        rates.sample(100.0 + number * SLOT_S, dict.fromkeys(peers, one))
    assert rates.report(frozenset()).full
    assert rates.report(frozenset()).up_bits_per_s == pytest.approx(80 * MBIT * len(peers), rel=0.01)


def test_a_rank_with_one_peer_measures_their_way_while_it_always_has_something_to_send():
    waits, sends = [({1: 20}, {1})] * 20, [({1: 100}, set[int]())] * 10
    for slots, mbit in ((waits, 0), (waits + sends + waits, 100)):
        rates = LinkRates()
        carry_to(rates, [slot for slot, _ in slots], [limited for _, limited in slots])
        report = rates.report(frozenset({1}))
        assert report.up_bits_per_s == report.far_up_bits_per_s == pytest.approx(mbit * MBIT, rel=0.01)
        assert (report.down_bits_per_s, report.far_down_bits_per_s) == (0, 0), "it may have waited for the peer"
        assert report.full is (mbit > 0)


def test_of_two_ranks_one_receives_what_the_other_sends():
    sends = [LinkReport(mbit * MBIT, 0, mbit * MBIT, 0, {1 - rank: 20_000}) for rank, mbit in enumerate((100, 0))]
    table = agree(rows_of(sends, table=Network.uniform(2)), Network.uniform(2), number=1)
    assert (table.up_bits_per_s, table.down_bits_per_s) == ((100 * MBIT, 1000 * MBIT), (1000 * MBIT, 100 * MBIT))


def test_what_was_measured_is_forgotten_of_a_rank_that_has_moved_and_of_all_where_this_one_has():
    rates = LinkRates()

    def carry(rtt_s: float) -> None:
        one = replace(statistics(delivered=0, received=0), rtt_s_min=rtt_s)
        rates.see_round_trips({1: one, 2: one})

    carry_to(rates, [{1: 33, 2: 33}] * 20)
    carry(0.001)
    rates.forget(2)
    assert set(rates.report(frozenset()).rtt_us) == {1}
    carry(0.030)
    assert rates.report(frozenset()).rtt_us == {1: 300, 2: 30_000}
    rates.forget()
    carry(0.030)
    report = rates.report(frozenset())
    assert (report.rtt_us, report.up_bits_per_s) == ({1: 30_000, 2: 30_000}, 0)


def test_a_link_that_is_slow_itself_is_known_within_the_windows_that_are_kept():
    rates = LinkRates()
    carry_to(rates, [{1: 33, 2: 33, 3: 33}] * 20 + [{1: 8, 2: 8, 3: 8}] * (WINDOWS_KEPT + WINDOW_SLOTS))
    assert rates.report(frozenset()).up_bits_per_s == pytest.approx(24 * MBIT, rel=0.01)


def test_a_link_that_waits_for_what_leads_to_other_sites_says_nothing_of_itself():
    rates, far = LinkRates(), frozenset({2, 3})
    burst_at_first = [{1: 400, 2: 25, 3: 25}] + [{1: 0, 2: 25, 3: 25}] * 9
    carry_to(rates, [{1: 0, 2: 0, 3: 0}] * 2 + burst_at_first * 5)
    report = rates.report(far)
    assert report.up_bits_per_s == 0
    assert report.far_up_bits_per_s == pytest.approx(50 * MBIT, rel=0.01)
    as_they_pass_it_on = LinkRates()
    carry_to(as_they_pass_it_on, [{1: 0, 2: 0, 3: 0}] * 2 + [{1: 100, 2: 25, 3: 25}] * 10)
    assert as_they_pass_it_on.report(far).up_bits_per_s == 0
    among_themselves = LinkRates()
    carry_to(among_themselves, [{1: 0, 2: 0, 3: 0}] * 2 + [{1: 100, 2: 100, 3: 2}] * 10)
    assert among_themselves.report(frozenset({3})).up_bits_per_s == pytest.approx(202 * MBIT, rel=0.01)


def test_who_leaves_what_crosses_between_sites_to_a_delegate_does_not_seem_to_carry_its_former_part():
    rates, far = LinkRates(), frozenset({2, 3})
    by_all, by_a_delegate = {1: 50, 2: 25, 3: 25}, {1: 100, 2: 0, 3: 0}
    carry_to(rates, [{1: 0, 2: 0, 3: 0}] * 2 + [by_all] * 10 + [by_a_delegate] * (WINDOWS_KEPT + WINDOW_SLOTS))
    assert rates.report(far).far_up_bits_per_s == 0


def test_two_ranks_agree_with_their_first_collective_and_not_before(make_world):
    world = make_world(2)

    def begun() -> list[int]:
        return [group._runtime._groups.by_name[agreement_group("w")].next_number for group in world.groups]

    def talk(group: Any) -> None:
        for number in range(20):
            sent = group.send(np.full(4, number, "f4"), 1 - group.rank)
            group.recv(np.empty(4, "f4"), 1 - group.rank).wait(30)
            sent.wait(30)

    world.results(talk)
    assert begun() == [0, 0]
    world.results(lambda group: group.allreduce(np.ones(4, "f4")).wait(30))
    wait_until(lambda: [group.explain()["network"]["number"] for group in world.groups] == [LAG, LAG])
    assert begun() == [1, 1]


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_agrees_beside_its_operations_and_goes_on(make_world, size):
    world = make_world(size)

    def body(group: Any) -> list[float]:
        works, tensors = [], [np.full(10_000, group.rank + number, "f4") for number in range(60)]
        for tensor in tensors:
            works.append(group.allreduce(tensor))
        for work in works:
            work.wait(30)
        return [float(tensor[0]) for tensor in tensors]

    sums = [float(sum(rank + number for rank in range(size))) for number in range(60)]
    assert world.results(body) == [sums] * size
    wait_until(lambda: sum(one["count"] for one in world.groups[0].explain()["collectives"]) >= 60)
    documents = [group.explain() for group in world.groups]
    assert all(document["network"]["number"] >= 1 for document in documents)
    assert len({json.dumps(document["network"]) for document in documents}) == 1
    entries = [one for one in documents[0]["collectives"] if one["operation"] == "all_reduce" and one["measured_s"]]
    assert sum(one["count"] for one in entries) == 60
    assert all(one["bytes"] == 40_000 and one["measured_s"] > 0 and one["candidates"] for one in entries)


def test_ranks_that_were_asked_for_different_algorithms_say_so(make_world):
    world = make_world(3)
    names = ["direct", "exchange", "direct"]
    groups = [group.subgroup([0, 1, 2], algorithm=name) for group, name in zip(world.groups, names, strict=True)]
    outcomes = world.run(lambda group: groups[group.rank].allreduce(np.ones(1000, "f4")).wait(30))
    assert all(isinstance(one, PeerError) for one in outcomes)
    assert "called allreduce sum of 1000 float32 by exchange" in str(outcomes[0])


def test_what_waits_for_an_agreement_ends_with_it(make_world):
    """A rank that stops before an agreement: the others' operations time out, or are cancelled."""
    world = make_world(3)

    def body(group: Any) -> int:
        works = []
        for _ in range(LAG + 3):
            if group.rank == 2:
                return 0
            works.append(group.allreduce(np.ones(10, "f4"), timeout_s=1.0))
        failed = 0
        for work in works:
            try:
                work.wait(30)
            except (TimedOutError, CancelledError):
                failed += 1
        return failed

    assert world.results(body)[:2] == [LAG + 3] * 2
    wait_until(lambda: not any(group._runtime._in_flight.is_running("w") for group in world.groups[:2]))


def test_ranks_go_on_together_after_an_agreement_that_failed_on_some_of_them(make_world):
    world = make_world(3, algorithm="weighted", timeout_s=15.0)
    planners = [group._runtime._in_flight._planner("w") for group in world.groups]
    assert world.run(lambda group: group.barrier().wait(30)) == [None] * 3
    wait_until(lambda: not any(group._runtime._in_flight.is_running("w") for group in world.groups))
    report = link(100, rtt_us={})
    rows = [planner.begin(2, lambda _far: report) for planner in planners]
    for planner in planners[:2]:
        planner.agreed([rows[0], rows[0], replace_rate(rows[2], 10 * MBIT)])
    planners[2].failed()

    def body(group: Any) -> list[str]:
        errors = []
        for _ in range(30):  # one after the other: a rank that waited for an agreement alone would wait for ever
            try:
                group.allreduce(np.ones(10_000, "f4")).wait(30)
            except PeerError as error:
                errors.append(str(error))
        return errors

    for errors in world.results(body):
        assert len(errors) < 15, errors  # until the next agreement
    documents = [group.explain() for group in world.groups]
    assert len({json.dumps(document["network"]) for document in documents}) == 1


def replace_rate(row: np.ndarray, rate: int) -> np.ndarray:
    """The row of a rank whose link has this rate."""
    return np.concatenate([[rate, rate], row[2:]])


def test_an_operation_that_one_rank_gave_up_leaves_its_agreement_to_the_next(make_world):
    world = make_world(3, algorithm="weighted")
    for group in world.groups:
        group._runtime._rates.report = lambda far, mbit=100 - 40 * group.rank: link(mbit, rtt_us={})
    world.groups[1].give_up("for the test")

    def body(group: Any) -> object:
        if group.rank != 1:
            with pytest.raises(CancelledError):
                group.allreduce(np.ones(10_000, "f4")).wait(30)
        return [group.allreduce(np.ones(10_000, "f4")).wait(30) for _ in range(5)]

    assert world.run(body) == [[None] * 5] * 3


def test_an_agreement_that_was_aborted_before_the_others_heard_of_it_is_over_for_them_too(make_world):
    """Else one rank would count one agreement more than the others for ever, and wait for them in each that follows."""
    world = make_world(3)

    def begun() -> list[int]:
        return [group._runtime._groups.by_name[agreement_group("w")].next_number for group in world.groups]

    def meet() -> None:
        world.run(lambda group: group.allreduce(np.ones(4, "f4")).wait(5))

    for _ in range(3):
        meet()
    wait_until(lambda: begun() == [1, 1, 1])
    planner = world.groups[0]._runtime._groups.by_name["w"].planner
    planner._has_news = lambda *_report: True
    for rank in (1, 2):
        world.network.hold("rank-0", f"rank-{rank}")
    work = world.groups[0].allreduce(np.ones(4, "f4"))
    wait_until(lambda: begun() == [2, 1, 1])
    world.groups[0].abort("enough")
    with pytest.raises(CancelledError):
        work.wait(5)
    del planner._has_news
    for rank in (1, 2):
        world.network.release("rank-0", f"rank-{rank}")
    for group in world.groups[1:]:
        with pytest.raises(CancelledError, match="enough"):
            group.allreduce(np.ones(4, "f4")).wait(5)
    for _ in range(LAG + 5):
        meet()
    assert len(set(begun())) == 1


def test_who_has_closed_a_group_keeps_the_others_from_no_agreement(make_world):
    world = make_world(3)
    groups = [group.subgroup([0, 1, 2], name="sub") for group in world.groups]
    for work in [group.allreduce(np.ones(4, "f4")) for group in groups for _ in range(3)]:
        work.wait(5)
    for _ in range(2):
        groups[0].broadcast(np.ones(4, "f4"), 0).wait(5)
    groups[0].close()  # the others have all that it had for them
    groups[1]._runtime._groups.by_name["sub"].planner._has_news = lambda *_report: True
    for _ in range(2):
        for group in groups[1:]:
            group.broadcast(np.zeros(4, "f4"), 0).wait(5)


def test_a_group_that_is_closed_ends_what_waits_for_an_agreement(make_world):
    world = make_world(3)
    works = [world.groups[0].allreduce(np.ones(10, "f4")) for _ in range(LAG + 5)]
    world.groups[0].close()
    for work in works:
        with pytest.raises(CancelledError):
            work.wait(30)


def test_a_rank_that_is_lost_ends_what_waits_for_an_agreement(make_world):
    world = make_world(3, reconnect_s=0.1)
    works = [group.allreduce(np.ones(10, "f4")) for group in world.groups[:2] for _ in range(LAG + 5)]
    world.groups[2].close()
    for work in works:
        with pytest.raises((ConnectionLostError, CancelledError)):
            work.wait(30)


def test_an_unknown_algorithm_is_an_error_that_lists_the_known_ones(make_world):
    world = make_world(2)
    with pytest.raises(ConfigurationError, match=r"HIVE_ALGORITHM.*one of direct, weighted, two_level"):
        world.groups[0].subgroup([0, 1], algorithm="fastest")
    with pytest.raises(ConfigurationError, match=r"HIVE_ALGORITHM.*one of direct"):
        make_world(1, algorithm="fastest")
    assert Settings.from_environment({"HIVE_ALGORITHM": "tree", "HIVE_SITE": "attic"}).algorithm == "tree"


def test_the_agreement_of_a_group_is_in_a_group_that_no_user_can_name(make_world):
    world = make_world(2)
    with pytest.raises(Exception, match=r"no '\|'"):
        world.groups[0].subgroup([0, 1], name=agreement_group("w"))


def test_what_is_explained_may_be_added_to_meanwhile():
    planner, over = Planner(ranks=range(4), rank=0, forced="direct", site="", host="x"), threading.Event()
    before_s = sys.getswitchinterval()

    def plan() -> None:
        for elems in itertools.cycle(range(400)):
            planner.latest(Problem(operation=Operation.ALLREDUCE, rank=0, size=4, item_bytes=4, counts=(elems,)))
            if over.is_set():
                return

    threads = [threading.Thread(target=plan) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            planner.explain()
    finally:
        sys.setswitchinterval(before_s)
        over.set()
        for thread in threads:
            thread.join()
    explained = planner.explain()["collectives"]
    assert isinstance(explained, list)
    assert len(explained) <= CHOICES_KEPT


def test_two_connections_to_a_rank_count_together_what_goes_through_memory_too() -> None:
    one = replace(statistics(delivered=1, received=10), shared_sent_bytes=100, shared_received_bytes=1000)
    both = together(one, replace(one, rtt_s_min=0.005, application_limited=not one.application_limited))
    assert (both.delivered_bytes, both.received_bytes, both.rtt_s_min) == (2, 20, 0.005)
    assert (both.shared_sent_bytes, both.shared_received_bytes) == (200, 2000)
    assert not both.application_limited, "over one of them there was always something left to send"
