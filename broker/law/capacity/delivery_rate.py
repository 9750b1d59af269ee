"""Measure what the network carried from when packets arrived; delayed acknowledgements do not distort it.

A one-way sample shows when a packet left here and how long it waited elsewhere, so when it arrived. What we sent
between two such packets arrived between their arrivals. While a queue persisted there, the bottleneck carried

    C = (sent(l2) - sent(l1)) / (a2 - a1)        l: when a packet left here; a = l + its wait elsewhere

of ours, which is the send rate divided by 1 + slope of the wait. From 97 to 30 Mbit/s the wait grows by 2.2 s a second:
two packets that left 0.1 s apart arrive 0.32 s apart. Acknowledgements by themselves gave 46 or 14 Mbit/s on that link.

The waits of a peer that stalled shrink by a second a second. Then C is very large, and the peer has no vote. The
median of the others counts, so a false report or one slow link moves it by little.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias

from msgspec import Struct

from broker.law.capacity.state import ArrivalState, TickState

UNSEEN_BYTES = 16_000
"""Bytes queued in this host where no counter shows them, in a program or before its leaf: ten packets and a half.
Measured with GSO batches of two packets: 18 to 20 KB in all, 6 to 7 of them the leaf's. Below 13 Mbit/s that takes
longer than the delay that counts as a queue elsewhere. The law cut for it and never rose again (simulated, 20 Mbit/s
that fell to 6 and rose to 14: never above 6). With 12 KB one rise of four is lost; with more, a failed probe adds
delay for longer."""
UNSEEN_S_MAX, PACKETS, PACKET_BYTES = 0.2, 2, 1_514
"""The largest allowance for unseen bytes: 0.2 s (it applies below 0.64 Mbit/s), or two packets (below 0.12 Mbit/s).
With half of it a rise from 0.9 Mbit/s was lost (simulated, one of four)."""
STANDING_S = 0.015
"""A wait above this is a standing queue: half of what counts as bloat, above the noise of busy hosts (5-10 ms)."""
DEEP_S, DEEP_TIMES = 0.1, 2
"""From this wait on a buffer may be full and drop part of what was sent. Drops inflate the measured rate, so then the
stretch with the lowest rate counts. On a slow link, where few packets take as long, the limit is `DEEP_TIMES` the
threshold of a standing queue."""
SPAN_S_MIN, SHALLOW_SPAN_S_MIN, SPAN_S_MAX = 0.12, 0.3, 0.8
"""The span of arrivals for a rate. Below a tick and its jitter it measures noise (10 ms of 120). In a shallow queue
noise weighs more, so the span is longer. Above the longest span a rate describes the past."""
STRETCH_S = 0.2
"""The shortest stretch of a deep queue that counts by itself, or half of the whole: ticks resolve 100 ms."""
FULL_S = 0.05
"""The estimated wait may exceed the longest measured one by so much: a full buffer drops what would wait longer."""
GAP_S_MAX = 0.25
"""If a packet left so long after the last one arrived, the queue may have emptied between them: two samples and a half.
It did not where more left meanwhile than the link can carry."""
HELD_UP_S = 0.02
"""Tolerance for arrivals that are closer than the link allows, and the least span between packets: twice the noise of
busy hosts (10 ms)."""
FRESH_S, KEPT_S = 1.5, 2.0
"""Reports count up to this age: a training step's gap is shorter, and TCP_INFO comes once a second on busy hosts.
Arrivals and ticks are kept a little longer: a transport reports local drops as loss up to a few round trips later."""
APART_S, OF_PEER_MAX, PEERS_MAX = 0.04, 20, 8
"""Arrivals closer than this add nothing: a session reports ten to twenty a second, several sessions of a peer may
coincide. Two seconds at ten a second are kept for each peer, and enough peers for a median: 160 in all. Reading them
costs less than 0.2 ms."""
REPORTED_MIN = 5
"""So many arrivals in two seconds count as regular: a peer probed ten times a second reports twenty."""

Point: TypeAlias = tuple[float, float, float, float]
"""A packet: when it left, when it arrived, how many bits had left before it, and how long it waited for our traffic."""


class DeliveryRate(Struct, frozen=True):
    """The rate at which our traffic was carried lately.

    Fields: `span_s` of the arrivals; `wait_s` how long a packet that leaves now will wait elsewhere; `deepest_s` the
    longest wait in the span; `deep_s` the wait from which on a buffer may have been full.
    """

    carried_bits_per_s: float
    span_s: float
    wait_s: float
    deepest_s: float
    deep_s: float = DEEP_S

    @property
    def deep(self) -> bool:
        return self.deepest_s >= self.deep_s


def threshold_s(least_s: float, rate_bits_per_s: float) -> float:
    """The delay from which on a queue elsewhere is believed, for a send rate.

    It is no shorter than the unseen bytes take, as CoDel's target is no shorter than a packet (RFC 8289, section 4.4).
    """
    most_s = max(UNSEEN_S_MAX, PACKETS * PACKET_BYTES * 8 / rate_bits_per_s)
    return max(least_s, min(UNSEEN_BYTES * 8 / rate_bits_per_s, most_s))


def kept(
    arrivals: Sequence[ArrivalState], more: Sequence[ArrivalState], *, now_s: float
) -> tuple[ArrivalState, ...]:  # fmt: skip
    """Merge a tick's new arrivals into those kept: by peer, each peer's in order of time.

    At most `PEERS_MAX` peers are kept, the earliest, so that no new name displaces them. Where programs of several
    users report, one peer of each counts, however many a user names.
    """
    old = [entry for entry in arrivals if entry.left_s > now_s - KEPT_S]
    if not more and len(old) == len(arrivals):
        return tuple(arrivals)
    users = {entry.peer: entry.uid for entry in (*old, *more)}  # in the order in which they came
    peers = list(users)
    if len(set(users.values())) > 1:
        peers = [peer for place, peer in enumerate(peers) if users[peer] not in map(users.get, peers[:place])]
    peers = peers[:PEERS_MAX]
    found: list[ArrivalState] = []
    for peer in peers:
        own = [entry for entry in old if entry.peer == peer]
        for entry in sorted((entry for entry in more if entry.peer == peer), key=lambda entry: entry.left_s):
            if not own or entry.left_s >= own[-1].left_s + APART_S:
                own.append(entry)
        found += own[-OF_PEER_MAX:]
    return tuple(found)


def by_peer(
    arrivals: Sequence[ArrivalState], ticks: Sequence[TickState], *, since_s: float, now_s: float,
    most_bits_per_s: float = math.inf, left_at_bits_per_s: float = math.inf,
) -> dict[str, DeliveryRate | None]:  # fmt: skip
    """Measure for each peer what the network carried while its packets met a queue.

    None means that they meet none; a peer with too few samples is left out.

    Args:
        arrivals: by peer, each peer's in order of time.
        ticks: what left, as far back as the arrivals.
        since_s: packets that left before then do not count.
        now_s: the tick's time.
        most_bits_per_s: the most that can have been carried.
        left_at_bits_per_s: the lowest send rate of the last of them.
    """
    found: dict[str, DeliveryRate | None] = {}
    left: Left | None = None
    standing_s = threshold_s(STANDING_S, left_at_bits_per_s)
    deep_s = max(DEEP_S, DEEP_TIMES * standing_s)
    for peer, entries in groupby(arrivals, key=lambda entry: entry.peer):
        own = [entry for entry in entries if since_s <= entry.left_s]
        if not own or own[-1].left_s < now_s - FRESH_S:
            continue
        if own[-1].wait_s < standing_s:
            found[peer] = None
            continue
        left = left or Left(ticks)
        rate = _of_peer(own, left, now_s=now_s, most_bits_per_s=most_bits_per_s, standing_s=standing_s, deep_s=deep_s)
        if rate is not None:
            found[peer] = rate
    return found


def middle(found: Collection[DeliveryRate | None]) -> DeliveryRate | None:
    """The median of several peers' rates, field by field; None unless more than half of them see a queue."""
    rates = [rate for rate in found if rate is not None]
    if 2 * len(rates) <= len(found):
        return None
    return DeliveryRate(
        statistics.median(rate.carried_bits_per_s for rate in rates),
        statistics.median(rate.span_s for rate in rates),
        statistics.median(rate.wait_s for rate in rates),
        statistics.median(rate.deepest_s for rate in rates),
        rates[0].deep_s,
    )


def is_reported(arrivals: Sequence[ArrivalState]) -> bool:
    """Whether peers report arrivals often enough for the law to wait for them."""
    return len(arrivals) >= REPORTED_MIN


class Left:
    """The bits that had left until a time, spread evenly within each tick."""

    def __init__(self, ticks: Sequence[TickState]) -> None:
        self._ends_s = [tick.at_s for tick in ticks]
        self._ticks = ticks
        self._bits = list(accumulate((tick.sent_bits for tick in ticks), initial=0.0))
        self.since_s = ticks[0].at_s - ticks[0].elapsed_s if ticks else 0.0

    def until(self, at_s: float) -> float:
        number = bisect_left(self._ends_s, at_s)
        if number == len(self._ticks):
            return self._bits[-1]
        tick = self._ticks[number]
        within_s = at_s - tick.at_s + tick.elapsed_s
        return self._bits[number] + (tick.sent_bits * within_s / tick.elapsed_s if within_s > 0 else 0.0)

    def between(self, from_s: float, to_s: float) -> float:
        return self.until(to_s) - self.until(from_s)


def _of_peer(
    arrivals: Sequence[ArrivalState], left: Left, *, now_s: float, most_bits_per_s: float, standing_s: float,
    deep_s: float,
) -> DeliveryRate | None:  # fmt: skip
    last = arrivals[-1]
    standing = [last]
    for entry in reversed(arrivals[:-1]):
        if entry.wait_s < standing_s or last.arrived_s - entry.arrived_s > SPAN_S_MAX or entry.left_s < left.since_s:
            break
        later = standing[-1]
        if later.left_s - entry.arrived_s > GAP_S_MAX and (
            entry.left_s + entry.wait_s + left.between(entry.left_s, later.left_s) / most_bits_per_s < later.left_s
        ):
            break
        standing.append(entry)
    standing.reverse()
    whole_s = last.arrived_s - standing[0].arrived_s
    points = [(entry.left_s, entry.arrived_s, left.until(entry.left_s), entry.wait_s) for entry in standing]
    prompt = _prompt(points, most_bits_per_s)
    carried, deepest_s = _carried(prompt, deep_s=deep_s)
    if not carried:  # the peer stalled
        carried, deepest_s = _carried(points, deep_s=deep_s)
    if not carried:
        return None
    wait_s = last.left_s + last.wait_s + (left.until(now_s) - points[-1][2]) / carried - now_s
    return DeliveryRate(carried, whole_s, min(max(0.0, wait_s), deepest_s + FULL_S), deepest_s, deep_s)


def _prompt(points: Sequence[Point], most_bits_per_s: float) -> list[Point]:
    """The packets that the peer did not delay: after a delayed one, the next arrives sooner than the link allows."""
    kept = [points[-1]]
    for point in reversed(points[:-1]):
        _, arrived_s, bits, _ = point
        if kept[-1][1] - arrived_s >= (kept[-1][2] - bits) / most_bits_per_s - HELD_UP_S:
            kept.append(point)
    kept.reverse()
    return kept


def _carried(points: Sequence[Point], *, deep_s: float) -> tuple[float, float]:
    """The rate carried between these packets, 0 where they are too close; and the longest wait."""
    whole_s = points[-1][1] - points[0][1]
    deepest_s = max(wait_s for *_, wait_s in points)
    deep = deepest_s >= deep_s
    pairs = [(points[0], points[-1])]
    if deep:
        apart_s = max(STRETCH_S, whole_s / 2)
        pairs += [
            (first, second)
            for number, first in enumerate(points)
            for second in points[number + 1 :]
            if second[1] - first[1] >= apart_s
        ]
    least_s = SPAN_S_MIN if deep else SHALLOW_SPAN_S_MIN
    rates = (_between(first, second, least_s) for first, second in pairs)
    return min((rate for rate in rates if rate > 0), default=0.0), deepest_s


def _between(first: Point, second: Point, least_s: float) -> float:
    """The rate carried between two packets; 0 where they are too close."""
    span_s = second[1] - first[1]
    if max(span_s, second[0] - first[0]) < least_s:
        return 0.0
    return (second[2] - first[2]) / max(span_s, HELD_UP_S)
