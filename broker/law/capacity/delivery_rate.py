"""What the network carried, by when packets arrived; held-up acknowledgements do not distort it.

A one-way sample shows when a packet left here and how long it waited elsewhere, so when it arrived. What we sent
between two such packets arrived between their arrivals. While a queue stood there all the time, the bottleneck carried

    C = (sent(l2) - sent(l1)) / (a2 - a1)        l: when a packet left here; a = l + its wait elsewhere

of ours, which is the send rate divided by 1 + slope of the wait. From 97 to 30 Mbit/s the wait grows by 2.2 s a second:
two packets that left 0.1 s apart arrive 0.32 s apart. Acknowledgements by themselves gave 46 or 14 Mbit/s on that link.

The waits of a peer that stalled shrink by a second a second. Then C is very large, and the peer has no vote. Of the
others the median counts, so one that lies, or that has a slow link of its own, moves it by little.
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
"""What waits in this host where no counter shows it, in a program's hands or on its way to its leaf: ten packets and a
half. Measured with GSO batches of two packets: 18 to 20 KB in all, 6 to 7 of them the leaf's. Below 13 Mbit/s that
takes longer than a queue elsewhere may. The law cut for it and never rose again (simulated, 20 Mbit/s that fell to 6
and rose to 14: never above 6). With 12 KB rises are lost (one of four); with more, people wait longer before a probe
has failed."""
UNSEEN_S_MAX, PACKETS, PACKET_BYTES = 0.2, 2, 1_514
"""Arrivals are kept for two seconds, and people wait: below 0.64 Mbit/s that is the most, or two packets, which at 0.12
Mbit/s take as long. With half of it a rise from 0.9 Mbit/s was lost (simulated, one of four)."""
STANDING_S = 0.015
"""A wait above this is a queue that stands: half of what counts as bloat, above the noise of busy hosts (5-10 ms)."""
DEEP_S, DEEP_TIMES = 0.1, 2
"""A queue of more may be a full buffer, which drops part of what was sent: then the stretch counts in which least was
carried, for what is dropped makes too much of every other. On a slow link, where few packets take as long, it is so
many times what stands."""
SPAN_S_MIN, SHALLOW_SPAN_S_MIN, SPAN_S_MAX = 0.12, 0.3, 0.8
"""Arrivals less apart than a tick and its jitter measure noise (10 ms of 120), and in a shallow queue that noise is the
most of what is measured; further apart they are about the past."""
STRETCH_S = 0.2
"""The shortest stretch of a deep queue that counts by itself, or half of the whole: ticks say what left to 100 ms."""
FULL_S = 0.05
"""By so much a wait may exceed the longest that was seen: what was dropped at a full buffer does not wait."""
UNHEARD_S = 0.25
"""Whether a queue stood between two packets of which the second left so long after the first had arrived, nobody knows:
two samples and a half. It did where what left meanwhile is more than could pass."""
HELD_UP_S = 0.02
"""By so much sooner than what left between them can pass, and the least span of packets that left well apart: twice the
noise of busy hosts (10 ms)."""
FRESH_S, KEPT_S = 1.5, 2.0
"""As old as what connections and destinations report may be: a training step's gap is shorter, and TCP_INFO comes once
a second on busy hosts. Arrivals and ticks are kept a little longer: local drops show as a transport's loss up to a few
round trips later."""
APART_S, OF_PEER_MAX, PEERS_MAX = 0.04, 20, 8
"""A session reports one ten to twenty times a second; of several sessions with one peer they may come at once, and
closer ones than this add nothing. Two seconds of ten a second of each peer, and of so many peers that the median is
known: 160 in all, which cost less than a fifth of a millisecond to read."""
REPORTED_MIN = 5
"""Arrivals of two seconds: a peer that is asked ten times a second reports twenty, unless our own queue is long."""

Point: TypeAlias = tuple[float, float, float, float]
"""Of a packet when it left, when it arrived, how many bits had left by then, and how long it waited for ours."""


class DeliveryRate(Struct, frozen=True):
    """What was carried of ours lately, over which span of arrivals; how long what leaves now will wait elsewhere, and
    the longest that a packet of the span did, which from `deep_s` on may have been a full buffer."""

    carried_bits_per_s: float
    span_s: float
    wait_s: float
    deepest_s: float
    deep_s: float = DEEP_S

    @property
    def deep(self) -> bool:
        return self.deepest_s >= self.deep_s


def threshold_s(least_s: float, rate_bits_per_s: float) -> float:
    """From which delay on a queue elsewhere is seen, where packets leave at a rate: no shorter than what the bytes take
    that no counter shows, as CoDel's target is no shorter than a packet takes (RFC 8289, section 4.4)."""
    most_s = max(UNSEEN_S_MAX, PACKETS * PACKET_BYTES * 8 / rate_bits_per_s)
    return max(least_s, min(UNSEEN_BYTES * 8 / rate_bits_per_s, most_s))


def kept(
    arrivals: Sequence[ArrivalState], more: Sequence[ArrivalState], *, now_s: float
) -> tuple[ArrivalState, ...]:  # fmt: skip
    """The arrivals to remember of those so far and a tick's new ones: by peer, each peer's in order of time.

    Of more peers than `PEERS_MAX` those that were there first stay, so that no new name moves them out. Where programs
    of several users report, one peer of each counts, however many a user names.
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
    """Say for each peer what the network carried while its packets stood in a queue; None where they stand in none. A
    peer with too few samples is left out.

    Args:
        arrivals: by peer, each peer's in order of time.
        ticks: what left, as far back as the arrivals.
        since_s: what left before then does not count.
        now_s: the tick's time.
        most_bits_per_s: more cannot have been carried.
        left_at_bits_per_s: what the last of them left at, at least.
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
        passage = _of_peer(
            own, left, now_s=now_s, most_bits_per_s=most_bits_per_s, standing_s=standing_s, deep_s=deep_s
        )
        if passage is not None:
            found[peer] = passage
    return found


def middle(heard: Collection[DeliveryRate | None]) -> DeliveryRate | None:
    """What several peers say together, where more see a queue than see none: of each figure the middle one, of two the
    mean."""
    passages = [passage for passage in heard if passage is not None]
    if 2 * len(passages) <= len(heard):
        return None
    return DeliveryRate(
        statistics.median(passage.carried_bits_per_s for passage in passages),
        statistics.median(passage.span_s for passage in passages),
        statistics.median(passage.wait_s for passage in passages),
        statistics.median(passage.deepest_s for passage in passages),
        passages[0].deep_s,
    )


def is_reported(arrivals: Sequence[ArrivalState]) -> bool:
    """Whether peers say often enough when packets arrive for the law to wait for it."""
    return len(arrivals) >= REPORTED_MIN


class Left:
    """What left until a time; within a tick evenly."""

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
        if later.left_s - entry.arrived_s > UNHEARD_S and (
            entry.left_s + entry.wait_s + left.between(entry.left_s, later.left_s) / most_bits_per_s < later.left_s
        ):
            break
        standing.append(entry)
    standing.reverse()
    whole_s = last.arrived_s - standing[0].arrived_s
    points = [(entry.left_s, entry.arrived_s, left.until(entry.left_s), entry.wait_s) for entry in standing]
    prompt = _prompt(points, most_bits_per_s)
    carried, deepest_s = _carried(prompt, deep_s=deep_s)
    if not carried:  # it was the peer that stalled
        carried, deepest_s = _carried(points, deep_s=deep_s)
    if not carried:
        return None
    wait_s = last.left_s + last.wait_s + (left.until(now_s) - points[-1][2]) / carried - now_s
    return DeliveryRate(carried, whole_s, min(max(0.0, wait_s), deepest_s + FULL_S), deepest_s, deep_s)


def _prompt(points: Sequence[Point], most_bits_per_s: float) -> list[Point]:
    """The packets that were not held up at the peer: after one that was, the next arrives sooner than what left between
    them can pass."""
    kept = [points[-1]]
    for point in reversed(points[:-1]):
        _, arrived_s, bits, _ = point
        if kept[-1][1] - arrived_s >= (kept[-1][2] - bits) / most_bits_per_s - HELD_UP_S:
            kept.append(point)
    kept.reverse()
    return kept


def _carried(points: Sequence[Point], *, deep_s: float) -> tuple[float, float]:
    """What was carried between these packets, 0 where they are too close; and the longest that one waited."""
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
    """What was carried between two packets; 0 where they are too close."""
    span_s = second[1] - first[1]
    if max(span_s, second[0] - first[0]) < least_s:
        return 0.0
    return (second[2] - first[2]) / max(span_s, HELD_UP_S)
