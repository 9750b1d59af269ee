"""What the two directions hand to the estimator, and the constants in which they differ.

`broker.law.capacity.outbound` and `broker.law.capacity.inbound` make an `Evidence` each tick. Outbound, our shaper
stands before the queue, and what got through has to be found out. Inbound, nothing of ours stands there, but every bit
that gets through passes our own counter.
"""

from __future__ import annotations

import math

from msgspec import Struct

from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.state import Cause

BASE_BITS_PER_S_MIN = 64_000
"""Below an ISDN channel a speed is a driver's way to say that it has none, and HTB's timer has no grip."""
FALLBACK_BITS_PER_S = 1_000_000_000
"""Where neither the operator nor the driver names a speed: what most hosts have; slower ones are found by measuring."""
DELAY_S = 0.030
"""A queue elsewhere of 30 ms is bloat (cake-autorate's T); less is the jitter of Wi-Fi and of busy hosts."""
PROBE_DELAY_S = 0.012
"""Just after a raise the suspicion is greater, and a mistake cheap: the raise is taken back."""


class Queue(Struct, frozen=True):
    """A queue elsewhere, as of now.

    Fields: `cause` why one is believed in, None where none is; `votes` by how many destinations, 0 where our own
    kernel does not confirm what programs report; `excess_s` how long packets wait there, over `baseline_s`; `ours`
    whether it would get shorter if we let less through.
    """

    cause: Cause | None = None
    votes: int = 0
    excess_s: float = 0.0
    baseline_s: float = 0.0
    ours: bool = True


class Carried(Struct, frozen=True):
    """What the link carried.

    Fields: `measured` by when packets arrived while a queue stood, None where that is not known; `since_cut` the same
    of what left since the last cut; `drained` whether what left since then met no queue; `assumed_bits_per_s` where
    nothing is measured; `reported` whether peers say when packets arrive at all; `least_bits_per_s` carried for sure,
    without a queue.
    """

    measured: DeliveryRate | None = None
    since_cut: DeliveryRate | None = None
    drained: bool = False
    assumed_bits_per_s: float = 0.0
    reported: bool = False
    least_bits_per_s: float = 0.0


class Room(Struct, frozen=True):
    """Whether there is room for more.

    Fields: `clear` whether those who were heard since the last change see no queue; `disputed` whether somebody does;
    `settled` whether the rate of now was proven to make none; `jitter_s` by how much packets' waits differ from one to
    the next, None of too few; `wait_s` how long packets waited that left once a raise had been used for a while, None
    where none was seen; `most_bits_per_s` how far a raise may go; `proven` whether what comes shows the last one right.
    """

    clear: bool = False
    disputed: bool = False
    settled: bool = False
    jitter_s: float | None = None
    wait_s: float | None = None
    most_bits_per_s: float = math.inf
    proven: bool = False


class Evidence(Struct, frozen=True):
    """What was measured in a tick: `limiting` whether our own limit was what limited, `heard` whether anybody reported
    anything lately, `used` whether enough passed for a report to be missed."""

    elapsed_s: float
    limiting: bool
    heard: bool
    used: bool
    queue: Queue
    carried: Carried
    room: Room


class Direction(Struct, frozen=True):
    """In what the directions differ.

    Fields: `headroom` of the rate is used; `cut_to` and `cut_to_deep` of what was carried a cut goes, over a queue and
    over a deep one, at most to `cut_to_min` and at least to `cut_to_max` of the rate before; `rate_min` of the base
    nothing goes below; `load_min` of the rate has to be used for a queue to be ours; after `forget_s` without a report
    a rate rises by `forget_step` a second; `proof_s` after a raise what comes has to show that it was right;
    `busy_gaps` whether the time for which our limit is what limits counts across gaps.
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
queue what was carried is known to 10 % only. A fall to a fifth is followed at once, a deeper one takes two cuts; a cut
by less than 3 % is not worth a write. Below 2 % of the base the sum of small floors would not move. Load: below 0.3 of
the rate delay elsewhere is somebody else's (of the busiest tenth of a second: training that a queue slows down to 0.3
of its link begins each burst with a queue of 120 ms). Forgetting: after a minute, the window of guarantees, 3 % a
second take a fifth of a link to all of it in 55 s, and who is heard again can say so before that."""

INBOUND = Direction(
    headroom=0.95, cut_to=1.0, cut_to_deep=1.0, cut_to_min=0.0, cut_to_max=math.inf, rate_min=0.0, load_min=0.05,
    forget_s=10.0, forget_step=math.inf, proof_s=1.5, busy_gaps=False,
)  # fmt: skip
"""Headroom: what leaves a sender at 0.95 of our rate arrives without a queue, though its shaper lets 64 KiB go at once.
What came while a queue stood is the capacity, to a percent or two, so a cut goes there, up or down. Load: when less
than 5 % of what operator or driver say comes in, a queue is somebody else's. Forgetting: without a verdict for ten
seconds an estimate is no measurement any more. Proof: in 1.5 s bursts of a second leave one gap; without it 82 Mbit/s
were believed of a link of 70 until the end, and people waited up to 46 ms, for in short gaps no queue lasts long enough
to be believed."""
