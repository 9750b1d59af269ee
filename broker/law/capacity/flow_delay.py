"""Evaluate one connection's samples: queueing delay elsewhere, and what it sent, lost and delivered.

Delay is measured against the least one: a round trip against a slowly rising baseline, a one-way sample against the
minimum of 40 s. Our own queue and cross traffic are subtracted. broker.law.capacity.signals combines connections,
broker.law.capacity.quorum destinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from broker.law.capacity.delivery_rate import FRESH_S, Left
from broker.law.capacity.evidence import DELAY_S
from broker.law.capacity.state import ArrivalState, FlowState, TickState
from broker.model.fair_share import in_turns
from broker.model.values import FlowSample
from broker.policy.types import CLASS_NAMES

FLOWS_MAX, MEASURED_MIN = 32, 16
"""The connections that are evaluated, those that delivered most: more add nothing about one uplink and cost time. Half
of the places are kept for those that our kernel measures."""
PROBE = "probe"
"""The source of probe samples: each echo is a new round trip, however small."""
REPORT = "report"
"""The source of what programs report; everything else our own kernel has measured."""
PACKET_BYTES = 1_600
"""A backlog of one packet is no queue: the send rate of a class with nothing more to send means nothing."""
NEW_S = 0.005
"""A sample is new if it is so much later than the last one: its age rises until there is another."""
PROGRESS_BYTES = 3_000
"""A round trip counts as new after so many more acknowledged bytes: two packets."""
QUEUE_TRUSTED_S = 0.12
"""Our own queue is subtracted up to this delay: a leaf holds 50 ms at capacity, twice that at half of it."""
QUEUE_SHORT_S = 0.03
"""Above this our own queue is too uncertain to date a packet's departure: at 97 Mbit/s training has 7 ms."""
QUEUE_LOOK_BACK_S = 0.25
"""A sample may be a tick old, and the queue was read at another instant: two and a half ticks."""
QUEUE_JOINED_S = 0.12
"""A packet joined our queue one round trip before its acknowledgement; a tick either way."""
BASELINE_RISE = 0.001
"""Per sample and only while the link is not loaded (cake-autorate's value): a longer path is learned in minutes."""
SILENT, SILENT_S_MAX = 0.05, 0.3
"""We count as silent below this part of our rate, which acknowledgements and small messages stay below. The rate is
averaged over at most three probe intervals: averaged over a pause of seconds, a burst's beginning would look silent."""
CROSS_BELIEVED_S = 1.0
"""Cross traffic is assumed for as long as a burst of training. After a second of our sending, its queue has passed."""
CROSS_APART_S = 0.05
"""Packets closer than this give no slope: waits of busy hosts are off by 5 to 10 ms."""
SHRINKS = 0.5
"""A queue without input shrinks by a second a second. A wait that shrinks by less than this part of it has input."""

Span: TypeAlias = tuple[float, float]
"""Excess delay in seconds, at least and at most: the instant of our own queue that a sample met is uncertain."""
PART_S, PARTS = 10.0, 4  # a sample is forgotten after 30 to 40 s
MINIMUM_S = PARTS * PART_S
"""The window of the least delay. Two clocks drift apart by 2 ms in it at 50 ppm, and a queue that does not empty for so
long has been found by then."""

Least: TypeAlias = tuple[tuple[float, float], ...]
"""The windowed minimum of a series: (start, least) of each part of the window, oldest first."""


def chosen(flows: Sequence[FlowSample]) -> list[FlowSample]:
    """The connections to evaluate: the busiest of the kernel's, and of programs' the same number for each user."""
    fresh = [flow for flow in flows if flow.age_s < FRESH_S and flow.delivered_bytes is not None]
    if len(fresh) > FLOWS_MAX:
        fresh.sort(key=lambda flow: (flow.source != PROBE, -(flow.delivered_bytes or 0), flow.key))
        measured = [flow for flow in fresh if flow.source != REPORT]
        reported = in_turns([flow for flow in fresh if flow.source == REPORT], of=lambda flow: flow.uid)
        places = max(MEASURED_MIN, FLOWS_MAX - len(reported))
        fresh = [*measured[:places], *reported][:FLOWS_MAX]
    return sorted(fresh, key=lambda flow: flow.key)


def with_sample(least: Least, value: float, *, at_s: float) -> Least:
    """Add a sample, not older than the last, to a windowed minimum."""
    kept = [part for part in least if part[0] > at_s - MINIMUM_S]
    if kept and at_s - kept[-1][0] < PART_S:
        kept[-1] = (kept[-1][0], min(kept[-1][1], value))
    else:
        kept.append((at_s, value))
    return tuple(kept)


def over(least: Least, value: float) -> float:
    """By how much a sample that is part of the window exceeds its minimum."""
    return value - min(lowest for _, lowest in least)


def is_known(flow: FlowState, *, at_s: float) -> bool:
    """Whether a sample of that time is already included: a sample's age rises until there is a new one."""
    return bool(flow.points) and at_s <= flow.points[-1][0] + NEW_S


def round_trip(
    before: FlowState, sample: FlowSample, *, now_s: float, ticks: Sequence[TickState], loaded: bool
) -> tuple[FlowState, Span | None]:
    """Add one connection's sample, and return its excess delay, at least and at most, where it shows one."""
    at_s = now_s - sample.age_s
    if is_known(before, at_s=at_s):
        return before, None
    delivered = sample.delivered_bytes or 0
    point = (at_s, delivered, sample.sent_packets or 0, sample.lost_packets or 0)
    old = [entry for entry in before.points if entry[0] > now_s - FRESH_S]
    if old and delivered < old[-1][1]:
        old = []  # the counters began anew: another connection under the same name
    after = replace(before, points=(*old[-12:], point))
    rtt_s = least_rtt_s(sample)
    progress = bool(before.points) and delivered - before.points[-1][1] >= (
        1 if sample.source == PROBE else PROGRESS_BYTES
    )
    if rtt_s is None or not (progress or before.baseline_s is None):
        return after, None
    index = class_index(sample)
    since_s = at_s - rtt_s - QUEUE_LOOK_BACK_S
    own_s = [tick.queue_s[index] for tick in ticks if tick.at_s >= min(since_s, now_s)]
    baseline_s = _baseline(before, sample, rtt_s=rtt_s, loaded=loaded)
    after = replace(after, baseline_s=baseline_s, minimum_s=sample.rtt_s_min)
    if not progress or max(own_s) > QUEUE_TRUSTED_S:
        return after, None
    joined_s = at_s - rtt_s
    then_s = [tick.queue_s[index] for tick in ticks if abs(tick.at_s - joined_s) <= QUEUE_JOINED_S] or own_s
    return after, (max(0.0, rtt_s - baseline_s - max(own_s)), max(0.0, rtt_s - baseline_s - min(then_s)))


def one_way(
    before: FlowState, sample: FlowSample, *, now_s: float, ticks: Sequence[TickState], rate_bits_per_s: int
) -> tuple[FlowState, Span | None, ArrivalState | None]:
    """Add one connection's one-way sample, and return its excess delay and its arrival where the sample is new.

    The delay is given at least and at most. Cross traffic's queue is subtracted from both results.
    """
    if sample.one_way_s is None or sample.one_way_age_s is None:
        return before, None, None
    sent_s = now_s - sample.age_s - sample.one_way_age_s
    if before.one_way_at_s is not None and sent_s <= before.one_way_at_s + NEW_S:
        return before, None, None
    minimum = with_sample(before.one_way_least_s, sample.one_way_s, at_s=sent_s)
    after = replace(before, one_way_at_s=sent_s, one_way_least_s=minimum)
    index = class_index(sample)
    near = [tick for tick in ticks if sent_s - QUEUE_JOINED_S <= tick.at_s <= sent_s + QUEUE_LOOK_BACK_S]
    own_s = [tick.queue_s[index] for tick in near]
    if not own_s:
        return after, None, None
    excess_s = over(after.one_way_least_s, sample.one_way_s)
    wait_s = max(0.0, excess_s - min(own_s))
    theirs_s, shown_s = cross_traffic_s(before, wait_s, left_s=sent_s, ticks=ticks, rate_bits_per_s=rate_bits_per_s)
    after = replace(after, one_way_wait_s=wait_s, cross_s=theirs_s, cross_at_s=shown_s)
    excess_s -= theirs_s
    trusted = max(own_s) <= QUEUE_TRUSTED_S
    span = (max(0.0, excess_s - max(own_s)), max(0.0, excess_s - min(own_s))) if trusted else None
    return after, span, _arrival(sample, sent_s, excess_s, theirs_s, index, ticks)


def cross_traffic_s(
    before: FlowState, wait_s: float, *, left_s: float, ticks: Sequence[TickState], rate_bits_per_s: int
) -> tuple[float, float]:
    """Estimate how much of a packet's wait is cross traffic's queue, and when the packet that showed it left.

    A queue that persists while we send nothing is cross traffic's, and to send less would not shorten it. One such
    cut took the rate from 97 Mbit/s to 19, and probing took sixteen seconds to recover it. A queue without input
    shrinks by a second a second. If a wait shrinks by less than half of that between two packets, and we sent next to
    nothing before both, then others fill the queue. From then on only the wait beyond it counts, until no later wait
    is longer, and for `CROSS_BELIEVED_S` after the last packet that showed it. In a full buffer our queue replaces
    theirs, and the wait stays the same. A wait below `DELAY_S` is noise. Two packets in a row have to wait so long,
    because a busy host may delay one; after a pause one packet is enough.

    Args:
        before: the connection's state after its previous packet.
        wait_s: over the connection's baseline, without our own queue.
        left_s: when the packet was sent.
        ticks: what left this host.
        rate_bits_per_s: the rate that the shaper has.
    """
    apart_s = left_s - before.one_way_at_s if before.one_way_at_s is not None else 0.0
    silent_s = min(apart_s, SILENT_S_MAX)
    waited = apart_s > silent_s or before.one_way_wait_s >= DELAY_S
    fills = waited and wait_s >= max(DELAY_S, before.one_way_wait_s - SHRINKS * apart_s)
    if fills and apart_s >= CROSS_APART_S and _is_silent(ticks, left_s, silent_s, rate_bits_per_s):
        return wait_s, left_s
    believed = left_s - before.cross_at_s <= CROSS_BELIEVED_S
    return min(before.cross_s, wait_s) if believed else 0.0, before.cross_at_s


def _is_silent(ticks: Sequence[TickState], left_s: float, silent_s: float, rate_bits_per_s: int) -> bool:
    return Left(ticks).between(left_s - silent_s, left_s) < SILENT * rate_bits_per_s * silent_s


def class_index(sample: FlowSample) -> int:
    """Where a connection's class is in `CLASS_NAMES`."""
    return CLASS_NAMES.index(sample.traffic_class) if sample.traffic_class in CLASS_NAMES else len(CLASS_NAMES) - 1


def packets(before: FlowState, after: FlowState) -> tuple[int, int]:
    """Packets that a connection sent and lost between its last two samples, if this tick has a new one."""
    if not before.points or after.points[-1] is before.points[-1]:
        return 0, 0
    _, _, sent_before, lost_before = before.points[-1]
    _, _, sent, lost = after.points[-1]
    return max(0, sent - sent_before), max(0, lost - lost_before)


def delivery(flow: FlowState, *, now_s: float, window_s: float) -> float:
    """A connection's delivery rate over a window that ends now, whenever its samples were taken."""
    if len(flow.points) < 2 or flow.points[-1][0] < now_s - FRESH_S or flow.points[-1][1] == flow.points[0][1]:
        return 0.0
    return max(0.0, (_delivered(flow, now_s) - _delivered(flow, now_s - window_s)) * 8 / window_s)


def peer_of_user(uid: int | None, peer: str) -> str:
    """The name of a peer as one user's programs report it; another user's reports of the same address are separate."""
    return f"{uid}/{peer}"


def _arrival(
    sample: FlowSample, sent_s: float, excess_s: float, theirs_s: float, index: int, ticks: Sequence[TickState]
) -> ArrivalState | None:
    """When a packet left here and how long it waited elsewhere; None where its wait in our own queue is unknown."""
    before = [tick for tick in ticks if tick.at_s <= sent_s][-1:]
    after = [tick for tick in ticks if tick.at_s > sent_s][:1]
    here_s = [tick.queue_s[index] if tick.backlog_bytes[index] > PACKET_BYTES else 0.0 for tick in (*before, *after)]
    if max(here_s) > QUEUE_SHORT_S:
        return None
    if len(here_s) == 2:
        part = (sent_s - before[0].at_s) / (after[0].at_s - before[0].at_s)
        mean_s = (1 - part) * here_s[0] + part * here_s[1]
    else:
        mean_s = here_s[0]
    peer = peer_of_user(sample.uid, sample.peer)
    return ArrivalState(peer, sent_s + mean_s, max(0.0, excess_s - mean_s), theirs_s, sample.uid)


def least_rtt_s(sample: FlowSample) -> float | None:
    """The lesser of a sample's round trips, the last and the smoothed one; None where it has neither."""
    known = [value for value in (sample.rtt_latest_s, sample.rtt_s) if value is not None and value > 0]
    return min(known) if known else None


def _baseline(before: FlowState, sample: FlowSample, *, rtt_s: float, loaded: bool) -> float:
    """Update the baseline: it falls at once, and rises slowly without load. A new minimum of the transport counts."""
    if before.baseline_s is None:
        known = sample.rtt_s_min if before.minimum_s is None and sample.rtt_s_min else rtt_s
        return min(known, rtt_s)
    baseline_s = min(before.baseline_s, rtt_s)
    if sample.rtt_s_min and (before.minimum_s is None or sample.rtt_s_min < before.minimum_s):
        baseline_s = min(baseline_s, sample.rtt_s_min)
    if not loaded:
        baseline_s += BASELINE_RISE * (rtt_s - baseline_s)
    return baseline_s


def _delivered(flow: FlowState, at_s: float) -> float:
    """The connection's counter at a time, interpolated between samples, extrapolated after the last one."""
    points = flow.points
    left = points[0]
    if at_s <= left[0]:
        return float(left[1])
    end = left
    for point in points[1:]:
        left, end = end, point
        if point[0] >= at_s:
            break
    return left[1] + (end[1] - left[1]) * (at_s - left[0]) / max(end[0] - left[0], 0.01)
