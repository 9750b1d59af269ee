"""Define the evidence that the two directions pass to the estimator, and the constants in which they differ.

`broker.law.capacity.outbound` and `broker.law.capacity.inbound` make an `Evidence` each tick. Outbound, our shaper is
before the queue, and the delivery rate has to be measured elsewhere. Inbound, we have no shaper before the queue, but
our own counter sees every bit that arrives.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.state import Cause

BASE_BITS_PER_S_MIN = 64_000
"""Below an ISDN channel a driver's speed means that it knows none, and HTB's timer is too coarse."""
FALLBACK_BITS_PER_S = 1_000_000_000
"""The base where neither the operator nor the driver names a speed: usual for hosts; slower ones are measured."""
DELAY_S = 0.030
"""A queue elsewhere of 30 ms is bloat (cake-autorate's T); less is the jitter of Wi-Fi and of busy hosts."""
PROBE_DELAY_S = 0.012
"""The threshold just after a raise: a queue is more likely then, and a mistake costs only the raise."""


def named_rate(configured_bits_per_s: int | None, link_bits_per_s: int | None) -> tuple[int, str]:
    """The link's rate as the operator or else the driver names it, without headroom or measurement, and its source."""
    if configured_bits_per_s is not None:
        return configured_bits_per_s, "configured"
    link = link_bits_per_s or 0
    return (link, "link") if link >= BASE_BITS_PER_S_MIN else (FALLBACK_BITS_PER_S, "fallback")


class Queue(Struct, frozen=True):
    """A queue elsewhere, as of now.

    Fields: `cause` the kind of evidence for it, None without any; `votes` of how many destinations, 0 where our own
    kernel does not confirm what programs report; `excess_s` how long packets wait there, over `baseline_s`; `ours`
    whether a lower rate of ours would shorten it.
    """

    cause: Cause | None = None
    votes: int = 0
    excess_s: float = 0.0
    baseline_s: float = 0.0
    ours: bool = True


class Carried(Struct, frozen=True):
    """What the link carried.

    Fields: `measured` from arrivals during a queue, None where unknown; `since_cut` the same of packets sent since the
    last cut; `drained` whether packets sent since then met no queue; `assumed_bits_per_s` where nothing is measured;
    `reported` whether peers report arrivals at all; `least_bits_per_s` carried for sure, without a queue;
    `used_bits_per_s` our rate, or the most that left lately where that is far less, so that ours limited nothing.
    """

    measured: DeliveryRate | None = None
    since_cut: DeliveryRate | None = None
    drained: bool = False
    assumed_bits_per_s: float = 0.0
    reported: bool = False
    least_bits_per_s: float = 0.0
    used_bits_per_s: float = math.inf


class Room(Struct, frozen=True):
    """Whether there is room for a higher rate.

    Fields: `clear` whether the reports since the last change show no queue; `disputed` whether any of them does;
    `settled` whether the present rate was proven to make none; `jitter_s` the difference between successive waits,
    None of too few; `wait_s` how long packets waited that left once a raise had been used for a while, None where none
    was seen; `most_bits_per_s` the limit of a raise; `proven` whether the arrival rate confirms the last raise.
    """

    clear: bool = False
    disputed: bool = False
    settled: bool = False
    jitter_s: float | None = None
    wait_s: float | None = None
    most_bits_per_s: float = math.inf
    proven: bool = False


class Evidence(Struct, frozen=True):
    """The measurements of a tick.

    Fields: `limiting` whether our own limit was the bottleneck; `reported` whether any report came lately; `used`
    whether enough traffic passed for a missing report to count.
    """

    elapsed_s: float
    limiting: bool
    reported: bool
    used: bool
    queue: Queue
    carried: Carried
    room: Room


class Direction(Struct, frozen=True):
    """The constants of one direction.

    Fields: `headroom` the part of the rate that is used; `cut_to` and `cut_to_deep` the part of the carried rate that
    a cut goes to, over a queue and over a deep one; `cut_to_min` and `cut_to_max` bound it as parts of the rate before;
    `rate_min` the lowest rate, as a part of the base, 0 for `BASE_BITS_PER_S_MIN`;
    `load_min` the part of the rate, as the operator names it, that has to be used for a queue to be ours;
    `forget_s` after which without a report the rate rises by `forget_step` a second; `proof_s` the time in which the
    arrival rate has to confirm a raise; `busy_gaps` whether the time of our own limit counts across gaps.
    """

    headroom: float
    cut_to: float
    cut_to_deep: float
    cut_to_min: float
    cut_to_max: float
    rate_min: float
    load_min: float
    forget_s: float
    forget_step: float
    proof_s: float
    busy_gaps: bool


OUTBOUND = Direction(
    headroom=0.97, cut_to=0.95, cut_to_deep=0.9, cut_to_min=0.2, cut_to_max=0.97, rate_min=0.02, load_min=0.3,
    forget_s=60.0, forget_step=0.03, proof_s=math.inf, busy_gaps=True,
)  # fmt: skip
"""Headroom: the shaper stays below the link, so that the queue is here; 3 % covers framing that HTB does not see.
Cuts: the queue has to get shorter, and the ratio of wire to delivered bytes is known to a few percent; over a deep
queue the carried rate is known to 10 % only. A fall to a fifth is followed at once, a deeper one takes two cuts; a cut
by less than 3 % is not worth a write. Below 2 % of the base the sum of small floors would not move, and wrong evidence
would cost more. Load: below 0.3 of the rate delay elsewhere is cross traffic's (of the busiest tenth of a second:
training that a queue slows down to 0.3 of its link begins each burst with a queue of 120 ms). Where the operator names
no rate and no bottleneck is found yet, it is enough that somebody had more to send and two destinations see the queue:
behind a modem of 40 Mbit/s senders that wait for acknowledgements never reach 0.3 of a card of 1 Gbit/s. One
destination may have a slow link of its own. Forgetting: after a minute, the window of guarantees, 3 % a second take a
fifth of a link to all of it in 55 s. A report that comes before that stops the rise."""

UNNAMED = replace(OUTBOUND, rate_min=0.0)
"""Where the operator names no rate: 2 % of a card of 1 Gbit/s are more than many uplinks have."""

INBOUND = Direction(
    headroom=0.95, cut_to=1.0, cut_to_deep=1.0, cut_to_min=0.0, cut_to_max=math.inf, rate_min=0.0, load_min=0.05,
    forget_s=10.0, forget_step=math.inf, proof_s=1.5, busy_gaps=False,
)  # fmt: skip
"""Headroom: what leaves a sender at 0.95 of our rate arrives without a queue, though its shaper lets 64 KiB go at once.
The arrival rate during a queue is the capacity, to a percent or two, so a cut goes there, up or down. Load: when less
than 5 % of the rate that the operator names arrives, a queue is cross traffic's; a driver's rate says nothing of an
uplink. Forgetting: after ten seconds without a verdict the estimate is out of date. Proof: in 1.5 s bursts of a second
leave one gap. Without it the estimate of a link of 70 Mbit/s stayed at 82 to the end, and people waited up to 46 ms: in
short gaps no queue lasts long enough to count."""
