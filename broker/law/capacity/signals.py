"""The memory of the outbound signals: delay, loss and delivery of each connection, and what they amount to now.

Every round trip is compared with its connection's own baseline. Four things besides a queue elsewhere lengthen it:

    our own queue        a class' backlog divided by the rate at which the class left, the highest since the packet can
                         have been queued, is subtracted; above `QUEUE_TRUSTED_S` the sample is ignored
    a queue towards us   acknowledgements wait behind the peer's data. So our transport measures one-way delay
                         (transport.mesh.one_way_delay). Other samples count as two-way while much comes in: they can
                         deny a queue, never prove one
    a busy processor     the lesser of the last and the smoothed round trip counts, and several ticks have to agree
    cross traffic        only what exceeds a queue of others counts (broker.law.capacity.flow_delay)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import delivery_rate, quorum
from broker.law.capacity.delivery_rate import FRESH_S, KEPT_S
from broker.law.capacity.flow_delay import (
    QUEUE_LOOK_BACK_S,
    REPORT,
    Span,
    chosen,
    class_index,
    delivery,
    is_known,
    one_way,
    packets,
    round_trip,
)
from broker.law.capacity.state import ArrivalState, DestinationState, FlowState, SignalState, TickState
from broker.model.values import ClassSample, FlowSample

PEAK_S, PEAK_PART_S = 1.0, 0.08
"""The delay of a burst is remembered for `PEAK_S`. A part is a tick long, because a shorter one is a few packets."""
WINDOW_S = 0.3
"""The window of delivery: three reports. A shorter one shows the grain of acknowledgements, a longer one the past."""
TWO_WAY_PART = 0.3
"""Acknowledgements are 2-5 % of what is sent; a third is traffic of its own, which may queue on its way to us."""
GAPS_S = 10.0
"""One-way signals are expected for so long after the last one: longer than a training step."""
RATIO_GAIN = 0.05
"""Twenty ticks (2 s): the ratio of wire to delivered bytes changes with the mix of packets only."""
RATIO_MIN, RATIO_MAX = 0.9, 1.3
"""Headers cost 3-5 % at full size, up to 30 % for small packets; outside, part of the traffic is not reported."""
COVERED_MIN = 0.5
"""Delivery is trusted when the ratio was plausible in most of the recent ticks."""
ARRIVAL_S, ARRIVED = 1.0, 0.97
"""A second is several round trips, so that acknowledgements have come back. The wire ratio is known to 3 %."""
LOSS_LAG_S = 1.5
"""Losses are counted from so long after a cut's drain. Earlier losses show by later packets, or when a timer of 0.2 to
0.4 s runs out; and TCP counts a loss when it sends again, which a training burst delays by up to a second."""
LOSS_PACKETS_MIN = 3
"""Any link loses one or two packets a second, or seems to."""


class _Voter(NamedTuple):
    """The destination of a measurement, and who measured it."""

    peer: str
    two_way: bool
    reported: bool
    uid: int | None


class Signals(Struct, frozen=True):
    """The signals of all destinations together, as of now.

    Fields: `excess_s` the median of the destinations, of fresh one-way samples where there are some, None without
    samples; `baseline_s` the shortest baseline; `wanting` whether any class had more to send than the network takes,
    within the age of signals; `through_bits_per_s` what arrives, on the wire's scale, None where reports do not cover
    the traffic; `tx_bits_per_s` what left, over the window; `lost_fraction` on the path in the last second;
    `lost_since_packets` and `lost_since_fraction` what was sent after the last cut's drain and lost since; `flows` how
    many connections reported lately.
    """

    excess_s: float | None
    baseline_s: float
    wanting: bool
    through_bits_per_s: float | None
    tx_bits_per_s: float
    lost_fraction: float
    lost_since_packets: int
    lost_since_fraction: float
    flows: int


def observe(
    state: SignalState, *, now_s: float, flows: Sequence[FlowSample], classes: Sequence[ClassSample],
    sent_bits: Sequence[float], received_bits: float | None, dropped_packets: Sequence[int], elapsed_s: float,
    loaded: bool, rate_bits_per_s: int,
) -> SignalState:  # fmt: skip
    """Add one tick's measurements to the state.

    Args:
        state: of the last tick.
        now_s: the tick's time.
        flows: as measured, in any order.
        classes: fresh counters, in the order of `CLASS_NAMES`.
        sent_bits: what each class sent since the last tick, in the same order.
        received_bits: what the interface received since the last tick; None where that is not known.
        dropped_packets: by each class' queues here since the last tick, in the same order.
        elapsed_s: since the last tick.
        loaded: whether the link is loaded, so that baselines must not rise.
        rate_bits_per_s: the rate that the shaper has.
    """
    ticks = [
        *_ticks_before(state.ticks, now_s=now_s, sent_bits=sent_bits, elapsed_s=elapsed_s),
        _tick(now_s, elapsed_s, classes, sent_bits, received_bits, dropped_packets),
    ]
    known = {flow.key: flow for flow in state.flows}
    kept: list[FlowState] = []
    excess: dict[_Voter, Span] = {}
    one_way_cross: dict[_Voter, float] = {}
    sources: dict[_Voter, str] = {}
    arrivals: list[ArrivalState] = []
    wanting_s = state.wanting_s
    lost, sent = [0] * len(classes), [0] * len(classes)
    for sample in chosen(flows):
        before, at_s = known.get(sample.key) or FlowState(sample.key), now_s - sample.age_s
        if sample.one_way_s is None and is_known(before, at_s=at_s):  # of many TCP connections most, in most ticks
            kept.append(before)
            continue
        after, both_ways = round_trip(before, sample, now_s=now_s, ticks=ticks, loaded=loaded)
        after, forward, arrival = one_way(after, sample, now_s=now_s, ticks=ticks, rate_bits_per_s=rate_bits_per_s)
        if arrival is not None:
            arrivals.append(arrival)
        if after is before:  # no new sample of either kind
            kept.append(after)
            continue
        more_sent, more_lost = packets(before, after)
        kept.append(after)
        compute = sample.traffic_class == "compute"
        if not sample.application_limited:
            wanting_s = now_s
        two_way = _is_two_way(sample, ticks, at_s=at_s)
        if not two_way:
            index = class_index(sample)
            sent[index], lost[index] = sent[index] + more_sent, lost[index] + more_lost
        if forward is not None and after.one_way_at_s is not None and after.one_way_at_s >= state.ignore_before_s:
            voter = _Voter(sample.peer, False, sample.source == REPORT, sample.uid)
            _note(excess, voter, forward)
            sources[voter] = sample.source
            one_way_cross[voter] = min(after.cross_s, one_way_cross.get(voter, after.cross_s))
        if both_ways is None or sample.one_way_s is not None or at_s < state.ignore_before_s:
            continue
        if compute or not two_way:  # else training's samples suffice: two-way ones can only deny a queue
            voter = _Voter(sample.peer, two_way, sample.source == REPORT, sample.uid)
            _note(excess, voter, both_ways)
            sources[voter] = sample.source
    ticks[-1] = replace(ticks[-1], lost_packets=tuple(lost), sent_packets=tuple(sent))
    state = replace(
        state,
        flows=tuple(kept),
        destinations=_destinations(state.destinations, excess, one_way_cross, sources, now_s=now_s),
        ticks=tuple(ticks),
        arrivals=delivery_rate.kept(state.arrivals, arrivals, now_s=now_s),
        wanting_s=wanting_s,
        one_way_s=now_s if any(not voter.two_way for voter in excess) else state.one_way_s,
    )
    return _learn(state, now_s=now_s)


def read(state: SignalState, *, now_s: float) -> Signals:
    """Summarise the signals as of now."""
    active = [entry for entry in state.destinations if entry.excess[-1][0] > now_s - FRESH_S]
    fresh = [entry for entry in active if not entry.two_way and entry.excess[-1][0] > now_s - quorum.VOTE_S]
    excess_s = quorum.median_of_voters((entry, entry.excess[-1][1]) for entry in fresh or active)
    lost, sent = _loss(state, now_s=now_s)
    lost_since, sent_since = _loss(state, now_s=now_s, after_drain=True)
    return Signals(
        excess_s=excess_s,
        baseline_s=min((flow.baseline_s for flow in state.flows if flow.baseline_s is not None), default=0.0),
        wanting=state.wanting_s is not None and state.wanting_s > now_s - FRESH_S,
        through_bits_per_s=through_bits_per_s(state, now_s=now_s) if state.covered > COVERED_MIN else None,
        tx_bits_per_s=tx_bits_per_s(state, now_s=now_s, window_s=WINDOW_S),
        lost_fraction=lost / sent if sent else 0.0,
        lost_since_packets=lost_since,
        lost_since_fraction=lost_since / sent_since if sent_since else 0.0,
        flows=sum(1 for flow in state.flows if flow.points and flow.points[-1][0] > now_s - FRESH_S),
    )


def one_way_expected(state: SignalState, *, now_s: float) -> bool:
    """Whether one-way signals arrive from time to time, as in gaps between bursts, so that a probe may wait for one."""
    return state.one_way_s is not None and state.one_way_s > now_s - GAPS_S


def arrives(state: SignalState, *, now_s: float) -> bool:
    """Whether what left in the last second also arrived: then the path carries it, whatever the delay."""
    if state.covered <= COVERED_MIN:
        return False
    left = tx_bits_per_s(state, now_s=now_s, window_s=ARRIVAL_S)
    return through_bits_per_s(state, now_s=now_s, window_s=ARRIVAL_S) >= ARRIVED * left > 0


def forget(state: SignalState, *, before_s: float) -> SignalState:
    """Drop the delay signals and ignore those measured before a time, because they belong to an earlier rate."""
    return replace(state, destinations=(), ignore_before_s=before_s)


def rebase(state: SignalState) -> SignalState:
    """Drop all baselines, so that the present delay becomes the path's own."""
    flows = tuple(replace(flow, baseline_s=None, one_way_least_s=()) for flow in state.flows)
    return replace(state, flows=flows, destinations=())


def peak_tx_bits_per_s(state: SignalState, *, now_s: float) -> float:
    """The highest send rate in any tenth of the last second: a burst's beginning fills a queue elsewhere."""
    peak = bits = elapsed_s = 0.0
    for tick in state.ticks:
        if tick.at_s <= now_s - PEAK_S:
            continue
        bits, elapsed_s = bits + tick.sent_bits, elapsed_s + tick.elapsed_s
        if elapsed_s >= PEAK_PART_S:
            peak, bits, elapsed_s = max(peak, bits / elapsed_s), 0.0, 0.0
    return peak


def tx_bits_per_s(state: SignalState, *, now_s: float, window_s: float) -> float:
    """The rate at which the interface sent over a window."""
    sent_bits = elapsed_s = 0.0
    for tick in state.ticks:
        if tick.at_s > now_s - window_s + 1e-9:
            sent_bits, elapsed_s = sent_bits + tick.sent_bits, elapsed_s + tick.elapsed_s
    return sent_bits / elapsed_s if elapsed_s > 0 else 0.0


def through_bits_per_s(state: SignalState, *, now_s: float, window_s: float = WINDOW_S) -> float:
    """The rate at which the reported connections delivered over a window, on the wire's scale."""
    delivered = 0.0
    for flow in state.flows:
        delivered += delivery(flow, now_s=now_s, window_s=window_s)
    return state.wire_ratio * delivered


def delivered_by_flow(state: SignalState, *, now_s: float) -> dict[str, float]:
    """Each followed connection's delivery rate over the last second, on the wire's scale."""
    return {flow.key: state.wire_ratio * delivery(flow, now_s=now_s, window_s=1.0) for flow in state.flows}


def _tick(
    now_s: float, elapsed_s: float, classes: Sequence[ClassSample], sent_bits: Sequence[float],
    received_bits: float | None, dropped_packets: Sequence[int],
) -> TickState:  # fmt: skip
    backlog_bytes = tuple(entry.backlog_bytes for entry in classes)
    return TickState(
        at_s=now_s,
        elapsed_s=elapsed_s,
        sent_bits=math.fsum(sent_bits),
        received_bits=received_bits,
        lost_packets=(),
        sent_packets=(),
        dropped_packets=tuple(dropped_packets),
        backlog_bytes=backlog_bytes,
        queue_s=_queues_s(backlog_bytes, sent_bits, elapsed_s=elapsed_s),
    )


def _ticks_before(
    ticks: Sequence[TickState], *, now_s: float, sent_bits: Sequence[float], elapsed_s: float
) -> list[TickState]:
    """The earlier ticks to keep, the last one with its queue delay recomputed.

    The backlog of the last tick left at the rate of this one, which is known only now.
    """
    kept = [tick for tick in ticks if tick.at_s > now_s - KEPT_S]
    if kept:
        left_s = _queues_s(kept[-1].backlog_bytes, sent_bits, elapsed_s=elapsed_s)
        kept[-1] = replace(kept[-1], queue_s=left_s)
    return kept


def _queues_s(backlog_bytes: Sequence[int], sent_bits: Sequence[float], *, elapsed_s: float) -> tuple[float, ...]:
    return tuple(_queue_s(size, bits / elapsed_s) for size, bits in zip(backlog_bytes, sent_bits, strict=True))


def _queue_s(backlog_bytes: int, rate_bits_per_s: float) -> float:
    """How long a class' backlog takes to leave at the class' send rate; at most 10 s."""
    if backlog_bytes <= 0:
        return 0.0
    return min(10.0, backlog_bytes * 8 / max(rate_bits_per_s, 1.0))


def _is_two_way(sample: FlowSample, ticks: Sequence[TickState], *, at_s: float) -> bool:
    """Whether a round trip may have waited in a queue towards us: while much came in.

    Where the received bytes are unknown, training's round trips count as such: in an all-reduce all send at once.
    """
    if ticks[-1].received_bits is None:
        return sample.traffic_class == "compute"
    return _much_came_in(ticks, since_s=at_s - (sample.rtt_s or 0.0) - QUEUE_LOOK_BACK_S)


def _note(excess: dict[_Voter, Span], destination: _Voter, span: Span) -> None:
    """Keep the least delay among a destination's connections: all of them share that queue."""
    least_s, most_s = excess.get(destination, span)
    excess[destination] = (min(least_s, span[0]), min(most_s, span[1]))


def _much_came_in(ticks: Sequence[TickState], *, since_s: float) -> bool:
    """Whether enough came in since a time for acknowledgements to have waited in a queue towards us."""
    received = sent = 0.0
    for tick in ticks:
        if tick.at_s >= since_s:
            received, sent = received + (tick.received_bits or 0.0), sent + tick.sent_bits
    return received > TWO_WAY_PART * sent


def _destinations(
    before: Sequence[DestinationState], excess: Mapping[_Voter, Span], one_way_cross: Mapping[_Voter, float],
    sources: Mapping[_Voter, str], *, now_s: float,
) -> tuple[DestinationState, ...]:  # fmt: skip
    known = {_voter_of(entry): entry for entry in before if entry.excess[-1][0] > now_s - 2 * FRESH_S}
    for voter, (least_s, most_s) in excess.items():
        entry = known.get(voter, DestinationState(voter.peer, voter.two_way, sources[voter], voter.uid))
        known[voter] = replace(
            entry,
            source=sources[voter],
            one_way=voter in one_way_cross,
            excess=(*entry.excess[-7:], (now_s, least_s, most_s)),
            cross_s=one_way_cross.get(voter, 0.0),
        )
    return tuple(known[voter] for voter in sorted(known, key=_in_order))


def _voter_of(entry: DestinationState) -> _Voter:
    return _Voter(entry.peer, entry.two_way, entry.source == REPORT, entry.uid)


def _in_order(voter: _Voter) -> tuple[str, bool, bool, int]:
    return voter.peer, voter.two_way, voter.reported, -1 if voter.uid is None else voter.uid


def _loss(state: SignalState, *, now_s: float, after_drain: bool = False) -> tuple[int, int]:
    """Packets lost on the path and packets sent, in the last second, of the classes that dropped none here lately.

    A drop of ours is one piece of up to 64 KiB, of which TCP then loses every segment, so it cannot be subtracted.
    `after_drain`: only those found long enough after the last cut's drain to have been sent after it.
    """
    dropping = quorum.dropping(state)
    lag_s = LOSS_LAG_S if after_drain and state.ignore_before_s > 0 else 0.0
    since_s = max(now_s - 1.0, state.ignore_before_s + lag_s)
    lost = sent = 0
    for tick in state.ticks:
        if tick.at_s > since_s:
            for index, (more_lost, more_sent) in enumerate(zip(tick.lost_packets, tick.sent_packets, strict=True)):
                if index not in dropping:
                    lost, sent = lost + more_lost, sent + more_sent
    return lost, sent


def _learn(state: SignalState, *, now_s: float) -> SignalState:
    """Learn how wire bytes relate to delivered ones while no queue grows anywhere."""
    lost, sent = _loss(state, now_s=now_s)
    if lost >= max(LOSS_PACKETS_MIN, quorum.LOSS_PART * sent):
        return state
    quiet = all(entry.excess[-1][1] < 0.01 for entry in state.destinations)
    tx = tx_bits_per_s(state, now_s=now_s, window_s=1.0)
    if not quiet or tx < 100_000:
        return state
    through = through_bits_per_s(state, now_s=now_s, window_s=1.0) / state.wire_ratio
    ratio = tx / through if through > 0 else 0.0
    plausible = RATIO_MIN <= ratio <= RATIO_MAX
    return replace(
        state,
        wire_ratio=state.wire_ratio + RATIO_GAIN * (ratio - state.wire_ratio) if plausible else state.wire_ratio,
        covered=state.covered + RATIO_GAIN * (float(plausible) - state.covered),
    )
