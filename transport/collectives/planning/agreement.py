"""What all ranks of a group hold for true of their links: each gives its report, all reckon the same table. Pure.

A report is a row of int64, so that an all-gather carries it. `agree` sees the same rows on every rank and uses whole
numbers, so that every rank gets the same table.

A rank may say anything. What it says counts within what others say of the same thing, or within a bound: of a round
trip the shorter of both ends' figures, of its rate a positive one, of where the table begins to hold `last_operation`.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hive_qos.units import RATE_BITS_PER_S_MAX
from transport.collectives.planning.cost_model import Network
from transport.collectives.planning.link_rates import LinkReport

Row: TypeAlias = npt.NDArray[np.int64]

CHANGE_PERCENT = 25
"""A table is replaced when a rate or a latency differs by more: traffic of others moves rates by less most of the time,
and an algorithm that is the best by less than this is not worth a change."""
SITE_RTT_US = 2000
"""Ranks with round trips of at most this are at one site: a light path of 200 km, more than a city."""
RATE_UNKNOWN_BITS_PER_S = 1_000_000_000
"""At least, of a link that was never measured: never busy for long enough, so not what others waited for."""
RTT_US_MAX = 60_000_000
"""No round trip takes a minute: who says so counts for that far."""
DIGEST, OPERATION, FULL, HOST, FIXED = 5, 6, 7, 8, 9
"""Places in a row: of the digest of the table that holds, of the operation, of whether the link was full (1: once,
`FULL_LATELY`), of the host, and of the round trips."""
FULL_LATELY = 2


def row_of(report: LinkReport, *, ranks: Sequence[int], table: Network, operation: int, site: str, host: str) -> Row:
    """This rank's row.

    Args:
        ranks: the group's members as ranks of the endpoint.
        table: the one that holds.
        operation: with which the agreement begins here.
        site: its name, "" where there is none.
        host: what no other machine is called.
    """
    fixed = [
        report.up_bits_per_s,
        report.down_bits_per_s,
        report.far_up_bits_per_s,
        report.far_down_bits_per_s,
        _digest(site) if site else 0,
        _digest(repr(astuple(table))),
        operation,
        int(report.full) + int(report.full_lately),
        _digest(host),
    ]
    return np.array([*fixed, *(report.rtt_us.get(rank, 0) for rank in ranks)], dtype=np.int64)


def agree(rows: Sequence[Row], previous: Network, *, number: int) -> Network:
    """The table that holds from now on: the previous one, unless the rows differ from it by enough.

    Args:
        rows: one of each rank, in rank order.
        previous: the table that held; not looked at where the ranks had different ones.
        number: of a new table: of the operation from which it holds, so that a group has no two with the same.
    """
    table = _table_of(rows, number=number)
    same_before = len({int(row[DIGEST]) for row in rows}) == 1
    return previous if same_before and previous.number and not _differs(table, previous) else table


def would_change(table: Network, rows: Sequence[Row]) -> bool:
    """Whether ranks that all hold this table would replace it, if these were their rows."""
    return _differs(_table_of(rows, number=table.number), table)


def last_operation(rows: Sequence[Row], *, ahead_max: int) -> int:
    """The latest of the operations with which the agreement began on a rank.

    Args:
        ahead_max: how far one rank can be ahead of most; whoever says more counts for that far.
    """
    operations = [int(row[OPERATION]) for row in rows]
    return min(max(operations), statistics.median_low(operations) + ahead_max)


def _table_of(rows: Sequence[Row], *, number: int) -> Network:
    size = len(rows)
    up, down, far_up, far_down, sites = (tuple(int(row[i]) for row in rows) for i in range(DIGEST))
    if any(row[FULL] >= FULL_LATELY for row in rows):  # who was never bound by its own link waits for those who are
        up, down = (
            tuple(rate if row[FULL] else 0 for rate, row in zip(all_, rows, strict=True)) for all_ in (up, down)
        )
    if size == 2:
        down = tuple(rate or sent for rate, sent in zip(down, reversed(up), strict=True))
    rtt = np.clip(np.array([row[FIXED:] for row in rows]), 0, RTT_US_MAX)
    np.fill_diagonal(rtt, 0)
    measured_by_both = np.minimum(rtt, rtt.T) > 0
    latency = np.where(measured_by_both, np.minimum(rtt, rtt.T), np.maximum(rtt, rtt.T)) // 2
    where = _sites(sites, [int(row[HOST]) for row in rows], latency)
    there = [[rank for rank in range(size) if where[rank] == site] for site in range(max(where) + 1)]
    return Network(
        up_bits_per_s=_known(up),
        down_bits_per_s=_known(down),
        latency_us=tuple(tuple(int(one) for one in row) for row in latency),
        sites=where,
        site_up_bits_per_s=_site_rates(there, far_up, up),
        site_down_bits_per_s=_site_rates(there, far_down, down),
        number=number,
    )


def _known(rates: Sequence[int]) -> tuple[int, ...]:
    """Rounded; a rank that measured nothing, or says what cannot be, has the fastest link of all."""
    measured = [rate for rate in rates if 0 < rate <= RATE_BITS_PER_S_MAX]
    unknown = max([RATE_UNKNOWN_BITS_PER_S, *measured])
    return tuple(_rounded(rate if 0 < rate <= RATE_BITS_PER_S_MAX else unknown) for rate in rates)


def _site_rates(there: Sequence[Sequence[int]], far: Sequence[int], all_: Sequence[int]) -> tuple[int, ...]:
    """What leads from each site to the others carries what its ranks' traffic across reached together.

    Before anything was measured of that, as much as one rank's link: the ranks of a site share what leads away.
    """
    across = [sum(min(max(far[rank], 0), RATE_BITS_PER_S_MAX) for rank in ranks) for ranks in there]
    if any(across):
        return _known(across)
    known = _known(all_)
    return tuple(max(known[rank] for rank in ranks) for ranks in there)


def _rounded(rate: int) -> int:
    """Two digits: what is beyond them is noise, and would make every table new."""
    unit = 10 ** max(len(str(rate)) - 2, 0)
    return int(max((rate + unit // 2) // unit * unit, 1))


def _sites(names: Sequence[int], hosts: Sequence[int], latency_us: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """The site of each rank: by name where all have one, else who is near to whom, and near to those.

    Within one place hosts count as sites where any has several ranks: these share what leads away from it.
    """
    size = len(names)
    label = list(names) if all(names) else list(range(size))
    if not all(names):
        for here in range(size):
            for there in range(here):
                if 0 < 2 * latency_us[here, there] <= SITE_RTT_US:
                    label = [label[there] if one == label[here] else one for one in label]
        if len(set(label)) == 1 and 1 < len(set(hosts)) < size:
            label = list(hosts)
    numbers = {one: number for number, one in enumerate(dict.fromkeys(label))}
    return tuple(numbers[one] for one in label)


def _differs(table: Network, previous: Network) -> bool:
    if table.sites != previous.sites:
        return True
    pairs = zip(_figures(table), _figures(previous), strict=True)
    return any(100 * abs(now - before) > CHANGE_PERCENT * before for now, before in pairs)


def _figures(table: Network) -> Iterator[int]:
    """Its rates, and its latencies: 0 for those that are not known yet."""
    rates = (table.up_bits_per_s, table.down_bits_per_s, table.site_up_bits_per_s, table.site_down_bits_per_s)
    return itertools.chain(*rates, *table.latency_us)


def _digest(text: str) -> int:
    """Positive, for int64."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:7], "big") or 1
