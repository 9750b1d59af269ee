"""What the network carried, by when packets arrived: an estimator that held-up acknowledgements cannot fool.

A one-way sample says when a packet left here and how long it waited elsewhere, so when it arrived. What we sent between
two such packets arrived between their arrivals; while a queue stood there the whole time, that is what the bottleneck
carried of ours:

    C = (sent(l2) - sent(l1)) / (a2 - a1)        l: when a packet left here; a = l + its wait elsewhere

which is the send rate divided by 1 + slope of the wait. From 97 to 30 Mbit/s the wait grows by 2.2 s a second, so two
packets that left 0.1 s apart arrive 0.32 s apart. What was held up in a queue towards us changes when we hear of it and
not what we hear: acknowledgements by themselves said 46 Mbit/s on that link of 30, or 14, as that queue shrank or grew.

A peer that stalled has waits that shrink by a second a second: then arrivals coincide, C is very large, and nobody is
blamed. The other use is how long the queue is at this moment, which no sample can say: what has left since the last
sample has to pass at C, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.state import ArrivalState, TickState

STANDING_S = 0.015
"""A wait above this is a queue that stands: half of what counts as bloat, above the noise of busy hosts (5-10 ms)."""
DEEP_S = 0.1
"""A queue of more may be a full buffer, which drops part of what was sent: then the stretch counts in which least was
carried, for what is dropped makes too much of every other."""
SPAN_S_MIN, SHALLOW_SPAN_S_MIN, SPAN_S_MAX = 0.12, 0.3, 0.8
"""Arrivals less apart than a tick and its jitter measure noise (10 ms of 120), and in a shallow queue that noise is the
most of what is measured; further apart they tell about the past."""
STRETCH_S = 0.2
"""The shortest stretch of a deep queue that counts by itself, or half of the whole: ticks say what left to 100 ms."""
FULL_S = 0.05
"""By so much a wait may exceed the longest that was seen: what was dropped at a full buffer does not wait."""
SPAN_S_LEAST = 0.02
"""For packets that left well apart and arrived together."""
AGE_S_MAX = 1.5
"""As old as a destination's signals may be (broker.signals)."""

TOLD_MIN = 5
"""Arrivals of two seconds: a peer that is asked ten times a second says twenty, unless our own queue is long."""


@dataclass(frozen=True)
class Passage:
    """What was carried of ours lately, over which span of arrivals; how long what leaves now will wait elsewhere, and
    the longest that a packet of the span did."""

    carried_bits_per_s: float
    span_s: float
    wait_s: float
    deepest_s: float


def read(
    arrivals: Sequence[ArrivalState], ticks: Sequence[TickState], *, since_s: float, now_s: float
) -> Passage | None:
    """Say what the network carried while a queue stood; None where too little is known, or no queue stands.

    Args:
        arrivals: of all peers, each peer's in order of time.
        ticks: what left, as far back as the arrivals.
        since_s: what left before then does not count.
        now_s: the tick's time.

    Returns:
        Of several peers the one towards which most was carried: to cut too little is mended by the next cut.
    """
    found = []
    for peer in sorted({entry.peer for entry in arrivals}):
        own = [entry for entry in arrivals if entry.peer == peer and since_s <= entry.left_s]
        passage = _of_peer(own, ticks, now_s=now_s)
        if passage is not None:
            found.append(passage)
    return max(found, key=lambda passage: passage.carried_bits_per_s, default=None)


def is_told(arrivals: Sequence[ArrivalState]) -> bool:
    """Whether peers say often enough when packets arrive for the law to wait for it."""
    return len(arrivals) >= TOLD_MIN


def _of_peer(arrivals: Sequence[ArrivalState], ticks: Sequence[TickState], *, now_s: float) -> Passage | None:
    if not arrivals or arrivals[-1].wait_s < STANDING_S or arrivals[-1].left_s < now_s - AGE_S_MAX:
        return None
    last = arrivals[-1]
    standing = [last]
    for entry in reversed(arrivals[:-1]):
        if entry.wait_s < STANDING_S or last.arrived_s - entry.arrived_s > SPAN_S_MAX or entry.left_s < _since_s(ticks):
            break
        standing.insert(0, entry)
    deepest_s = max(entry.wait_s for entry in standing)
    whole_s = last.arrived_s - standing[0].arrived_s
    least_s = SPAN_S_MIN if deepest_s >= DEEP_S else SHALLOW_SPAN_S_MIN
    pairs = [(standing[0], last)]
    if deepest_s >= DEEP_S:
        pairs += [
            (first, second)
            for number, first in enumerate(standing)
            for second in standing[number + 1 :]
            if second.arrived_s - first.arrived_s >= max(STRETCH_S, whole_s / 2)
        ]
    rates = [rate for first, second in pairs if (rate := _between(first, second, ticks, least_s)) > 0]
    if not rates:
        return None
    carried = min(rates)
    wait_s = last.arrived_s + sent_bits(ticks, last.left_s, now_s) / carried - now_s
    return Passage(carried, whole_s, min(max(0.0, wait_s), deepest_s + FULL_S), deepest_s)


def _between(first: ArrivalState, second: ArrivalState, ticks: Sequence[TickState], least_s: float) -> float:
    """What was carried between two arrivals; 0 where they are too close to tell."""
    span_s = second.arrived_s - first.arrived_s
    if max(span_s, second.left_s - first.left_s) < least_s:
        return 0.0
    return sent_bits(ticks, first.left_s, second.left_s) / max(span_s, SPAN_S_LEAST)


def sent_bits(ticks: Sequence[TickState], from_s: float, to_s: float) -> float:
    """What left between two times; within a tick evenly."""
    total = 0.0
    for tick in ticks:
        within_s = min(to_s, tick.at_s) - max(from_s, tick.at_s - tick.elapsed_s)
        if within_s > 0:
            total += tick.sent_bits * within_s / tick.elapsed_s
    return total


def _since_s(ticks: Sequence[TickState]) -> float:
    return ticks[0].at_s - ticks[0].elapsed_s if ticks else 0.0
