"""What the measurements say about a bottleneck elsewhere: unexplained delay, loss on the way, and what came through.

Every connection's round trip is compared with its own baseline. Four things lengthen it that are not a queue
of ours elsewhere:

- our own queue. A storage connection with 128 KiB in its leaf at 20 Mbit/s waits 52 ms here. So the class' backlog
  divided by the rate at which the class left is subtracted, as its highest value since the packet can have been queued;
  where that is more than `QUEUE_TRUSTED_S` (a class that HTB starves) the sample says nothing.
- a queue towards us. In an all-reduce everybody sends at once, and acknowledgements wait behind the peer's data, at the
  peer or at our own slow way in; transports then take packets for lost that are not. So our transport measures the way
  there by itself (transport.path_delay). Where it does not, samples are "two-way" while much comes in: they can say
  that there is no queue, never that there is one. The gaps between bursts can.
- a busy processor. It holds up single samples: the lesser of the last and the smoothed round trip counts, and several
  ticks in a row have to agree.
- a queue of others, which stood before we sent anything (broker.others_queue): only what exceeds it counts.

Destinations vote (`agree`), and each has a voice where our own kernel measured it: TCP_INFO, or an echo that was asked
for. What programs say they measured is as good as its user, who may invent as many peers as he likes: all that one user
says is one voice, that of the majority of his peers, and he has no more places among the connections that are looked at
than other users. Kernel-measured ones have places of their own, which no report takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from broker import passage
from broker.connection_signals import (
    FLOW_STALE_S,
    PROBE,
    QUEUE_LOOK_BACK_S,
    REPORT,
    Span,
    counted_since,
    delivery,
    is_known,
    one_way,
    packets,
    round_trip,
    told_peer,
)
from broker.model import ClassSample, FlowSample
from broker.replacing import replace
from broker.state import ArrivalState, DestinationState, FlowState, SignalState, TickState

Value = TypeVar("Value")

HISTORY_S = 2.0
"""How far back ticks are kept: local drops show as a transport's loss up to a few round trips later."""
PEAK_S, PEAK_PART_S = 1.0, 0.08
"""As long as a burst's delay is remembered; a tick, for a shorter part is a few packets."""
WINDOW_S = 0.3
"""Over which delivery is measured: three reports; shorter shows the grain of acknowledgements, longer the past."""
ACTIVE_S = 1.5
"""How old a destination's last signal may be: a step's gap in either class is shorter."""
VOTE_S, SLOW_S, SLOW_APART_S = 0.8, 2.5, 0.5
"""Samples that vote together: eight ticks; where they come once a second, the last two."""
RECEIVED_FULL, RECEIVED_FORGET = 0.85, 0.9999
"""Below 85 % of the most that came in, the way in has room; what was seen fades by a half in twelve minutes."""
TWO_WAY_PART = 0.3
"""Acknowledgements are 2-5 % of what is sent; a third is traffic of its own, which may queue on its way to us."""
FLOWS_MAX, MEASURED_PLACES = 32, 16
"""Connections that are looked at, those that delivered most: more say nothing new about one uplink and cost time. Half
of the places are kept for those that our kernel measures."""
GAPS_S = 10.0
"""A step is shorter than this where steps matter."""
PRESSED_S = 0.5
"""Two reports and a half: whether somebody wants more than the network takes."""
RATIO_GAIN = 0.05
"""Twenty ticks (2 s): the ratio of wire to delivered bytes changes with the mix of packets only."""
RATIO_MIN, RATIO_MAX = 0.9, 1.3
"""Headers cost 3-5 % at full size, up to 30 % for small packets; outside, part of the traffic is not reported."""
COVERED_MIN = 0.5
"""Delivery is trusted when the ratio was plausible in most of the recent ticks."""
ARRIVAL_S, ARRIVED = 1.0, 0.97
"""A second: several round trips, so that acknowledgements have come back; 3 % is what the ratio is known to."""
LOSS_LAG_S = 0.5
"""What was lost before a cut's drain ended is found by the packets after it, or when a timer of 0.2 to 0.4 s runs out.
TCP counts a loss when it sends again, which while a burst goes first is as late as that is long: so besides, a
connection's losses count once it has sent new packets (`broker.connection_signals.LOSS_FRESH`)."""
LOSS_PACKETS_MIN, LOSS_PART = 3, 0.01
"""One or two packets in a second, or less than 1 %, are lost on any link, or only thought lost."""
LOSS_SENT_SURE = 100
"""Packets lately, of which none is lost where one in twenty is, once in 170 times."""

_Vote: TypeAlias = tuple[int, int]
"""1, -1 or 0: sees a queue, surely sees none, is not sure; and the same of those alone where the way was measured by
itself."""


class _Told(NamedTuple):
    """Of which destination something is said, and by whom."""

    peer: str
    two_way: bool
    told: bool
    uid: int | None


@dataclass(frozen=True)
class Signals:
    """What can be said now.

    Fields: `excess_s` the middle one of the destinations, the fresh one-way ones where there are some, None where
    nobody says anything; `baseline_s` the shortest baseline; `pressed` whether another class than compute has more to
    send than the network takes; `wanting` whether any class had, since the oldest signal that speaks of a queue;
    `through_bits_per_s` what arrives, on the wire's scale, None where reports do not cover the traffic;
    `tx_bits_per_s` what left, over the window; `lost_packets` and `lost_fraction` on the way in the last second, and
    `lost_since_packets` and `lost_since_fraction` those of them that were sent after the last cut's drain; `flows` how
    many connections were heard of lately.
    """

    excess_s: float | None
    baseline_s: float
    pressed: bool
    wanting: bool
    through_bits_per_s: float | None
    tx_bits_per_s: float
    lost_packets: int
    lost_fraction: float
    lost_since_packets: int
    lost_since_fraction: float
    flows: int


@dataclass(frozen=True)
class Heard:
    """What one destination says, for people.

    Fields: `excess_s` by how much its last packet was late at least, beside our own queue; `baseline_s` the least round
    trip to it, None where none is known; `source` as in `FlowSample`, `uid` whose programs say it where it is "report";
    `two_way` whether the way back is in it, so that it can only say that there is no queue; `sees_queue` None where it
    is not sure.
    """

    address: str
    excess_s: float
    baseline_s: float | None
    source: str
    two_way: bool
    sees_queue: bool | None
    uid: int | None


def observe(
    state: SignalState, *, now_s: float, flows: Sequence[FlowSample], classes: Sequence[ClassSample],
    sent_bits: Sequence[float], received_bits: float | None, dropped_packets: int, elapsed_s: float, loaded: bool,
    rate_bits_per_s: int,
) -> SignalState:  # fmt: skip
    """Take in one tick.

    Args:
        state: so far.
        now_s: the tick's time.
        flows: as measured, in any order.
        classes: fresh counters, in the order of `CLASS_NAMES`.
        sent_bits: what each class sent since the last tick, in the same order.
        received_bits: what the interface received since the last tick; None where that is not known.
        dropped_packets: by our own queues since the last tick.
        elapsed_s: since the last tick.
        loaded: whether the link is loaded, so that baselines must not rise.
        rate_bits_per_s: what this interface may send at.
    """
    ticks = [
        *_ticks_before(state.ticks, now_s=now_s, sent_bits=sent_bits, elapsed_s=elapsed_s),
        _tick(now_s, elapsed_s, classes, sent_bits, received_bits, dropped_packets),
    ]
    known = {flow.key: flow for flow in state.flows}
    kept: list[FlowState] = []
    excess: dict[_Told, Span] = {}
    asked: dict[_Told, float] = {}
    sources: dict[_Told, str] = {}
    arrivals: list[ArrivalState] = []
    pressed_s, wanting_s = state.pressed_s, state.wanting_s
    lost = sent = lost_since = sent_since = 0
    for sample in _chosen(flows):
        before, at_s = known.get(sample.key) or FlowState(sample.key), now_s - sample.age_s
        if sample.one_way_s is None and is_known(before, at_s=at_s):  # of many TCP connections most, in most ticks
            kept.append(before)
            continue
        after, both_ways = round_trip(before, sample, now_s=now_s, ticks=ticks, loaded=loaded)
        after, way_there, arrival = one_way(after, sample, now_s=now_s, ticks=ticks, rate_bits_per_s=rate_bits_per_s)
        if arrival is not None:
            arrivals.append(arrival)
        if after is before:  # no new sample of either kind
            kept.append(after)
            continue
        more_sent, more_lost = packets(before, after)
        after, counts = counted_since(before, after, since_s=state.ignore_before_s)
        kept.append(after)
        compute = sample.traffic_class == "compute"
        if not sample.application_limited:
            wanting_s = now_s
            pressed_s = pressed_s if compute else now_s
        two_way = _is_two_way(sample, ticks, at_s=at_s)
        if not two_way:
            sent, lost = sent + more_sent, lost + more_lost
            if counts:
                sent_since, lost_since = sent_since + more_sent, lost_since + more_lost
        if way_there is not None and after.way_at_s is not None and after.way_at_s >= state.ignore_before_s:
            told = _Told(sample.peer, False, sample.source == REPORT, sample.uid)
            _note(excess, told, way_there)
            sources[told] = sample.source
            asked[told] = min(after.others_s, asked.get(told, after.others_s))
        if both_ways is None or sample.one_way_s is not None or at_s < state.ignore_before_s:
            continue
        if compute or not two_way:  # else what training's samples tell, at most that there is no queue, is enough
            told = _Told(sample.peer, two_way, sample.source == REPORT, sample.uid)
            _note(excess, told, both_ways)
            sources[told] = sample.source
    ticks[-1] = replace(
        ticks[-1], lost_packets=lost, sent_packets=sent, lost_since_packets=lost_since, sent_since_packets=sent_since
    )
    state = replace(
        state,
        flows=tuple(kept),
        destinations=_destinations(state.destinations, excess, asked, sources, now_s=now_s),
        ticks=tuple(ticks),
        arrivals=passage.kept(state.arrivals, arrivals, now_s=now_s),
        pressed_s=pressed_s,
        wanting_s=wanting_s,
        one_way_s=now_s if any(not told.two_way for told in excess) else state.one_way_s,
        received_bits_per_s_max=max(RECEIVED_FORGET * state.received_bits_per_s_max, _received(ticks, now_s=now_s)),
    )
    return _learn(state, now_s=now_s)


def read(state: SignalState, *, now_s: float) -> Signals:
    """Say what the memory means now."""
    active = [entry for entry in state.destinations if entry.excess[-1][0] > now_s - ACTIVE_S]
    fresh = [entry for entry in active if not entry.two_way and entry.excess[-1][0] > now_s - VOTE_S]
    excess_s = middle_of_voices((entry, entry.excess[-1][1]) for entry in fresh or active)
    lost, sent = _loss(state, now_s=now_s)
    lost_since, sent_since = _loss(state, now_s=now_s, after_drain=True)
    return Signals(
        excess_s=excess_s,
        baseline_s=min((flow.baseline_s for flow in state.flows if flow.baseline_s is not None), default=0.0),
        pressed=state.pressed_s is not None and state.pressed_s > now_s - PRESSED_S,
        wanting=state.wanting_s is not None and state.wanting_s > now_s - ACTIVE_S,
        through_bits_per_s=through_bits_per_s(state, now_s=now_s) if state.covered > COVERED_MIN else None,
        tx_bits_per_s=tx_bits_per_s(state, now_s=now_s, window_s=WINDOW_S),
        lost_packets=lost,
        lost_fraction=lost / sent if sent else 0.0,
        lost_since_packets=lost_since,
        lost_since_fraction=lost_since / sent_since if sent_since else 0.0,
        flows=sum(1 for flow in state.flows if flow.points and flow.points[-1][0] > now_s - FLOW_STALE_S),
    )


def agree(
    state: SignalState, *, now_s: float, threshold_s: float, high: int, of: int, stalled: Collection[str] = ()
) -> int:
    """How many destinations see a queue, each by a voice of its own; 0 unless they prevail.

    Most of the one-way voices surely have to see one. Where the way there is measured by itself ("asked"), such a voice
    is enough, if not as many others surely see none: who is not sure, because it may be our own queue, has no say. A
    two-way voice can only say no. What one user's programs say is one voice, by the same rule among their peers.

    Args:
        state: the signals.
        now_s: the tick's time.
        threshold_s: what counts as a queue.
        high, of: a destination sees one when so many of so many last samples do; with samples only once a second, two.
        stalled: destinations that are not sure, whatever they say, as `broker.passage` names them.
    """
    votes: list[tuple[DestinationState, _Vote]] = []
    clear_two_way: list[tuple[DestinationState, bool]] = []
    for entry in state.destinations:
        if entry.two_way:
            if (clear := _is_clear(entry, now_s=now_s, threshold_s=threshold_s)) is not None:
                clear_two_way.append((entry, clear))
            continue
        vote = _sees(entry, now_s=now_s, threshold_s=threshold_s, high=high, of=of)
        if vote is not None:
            vote = 0 if told_peer(entry.uid, entry.peer) in stalled else vote
            votes.append((entry, (vote, vote if entry.asked else 0)))
    voices = _of_voices(votes, together=_one_vote)
    if _one_vote(voices)[0] <= 0 or _most(_of_voices(clear_two_way, together=_most)):
        return 0
    return _told_apart(sum(vote > 0 for vote, _ in voices), (entry.peer for entry, (vote, _) in votes if vote > 0))


def _sees(entry: DestinationState, *, now_s: float, threshold_s: float, high: int, of: int) -> int | None:
    """A one-way destination's vote: 1, -1 or 0 as in `_Vote`; None where it has nothing to say."""
    fresh, needed = [sample for sample in entry.excess[-of:] if sample[0] > now_s - VOTE_S], high
    slow = entry.excess[-2:]
    if len(slow) == 2 and slow[1][0] - slow[0][0] > SLOW_APART_S:
        fresh, needed = [sample for sample in slow if sample[0] > now_s - SLOW_S], 2
    if len(fresh) < 2:
        return None
    if sum(least_s > threshold_s for _, least_s, _ in fresh) >= needed:
        return 1
    return -1 if 2 * sum(most_s <= threshold_s for _, _, most_s in fresh) >= len(fresh) else 0


def _is_clear(entry: DestinationState, *, now_s: float, threshold_s: float) -> bool | None:
    """Whether most of a two-way destination's last samples say that there is no queue; None where there are none."""
    recent = [sample for sample in entry.excess if sample[0] > now_s - ACTIVE_S]
    return 2 * sum(most_s <= threshold_s for _, _, most_s in recent) > len(recent) if recent else None


def heard(
    state: SignalState, *, flows: Sequence[FlowSample], threshold_s: float, high: int, of: int
) -> list[Heard]:  # fmt: skip
    """What each destination says as of the last tick, for people: at most `FLOWS_MAX` of them, what our kernel measured
    first, then of each user's as many.

    Args:
        flows: as of that tick; they tell which connections lead where.
        threshold_s, high, of: as in `agree`.
    """
    if not state.ticks:
        return []
    now_s, by_key = state.ticks[-1].at_s, {flow.key: flow for flow in flows}
    baselines: dict[str, float] = {}
    for known in state.flows:
        if known.key in by_key and known.baseline_s is not None:
            peer = by_key[known.key].peer
            baselines[peer] = min(known.baseline_s, baselines.get(peer, math.inf))
    found = []
    for entry in state.destinations:
        if entry.excess[-1][0] <= now_s - ACTIVE_S:
            continue
        vote = None if entry.two_way else _sees(entry, now_s=now_s, threshold_s=threshold_s, high=high, of=of)
        sees = {1: True, -1: False}.get(vote or 0)
        if entry.two_way and _is_clear(entry, now_s=now_s, threshold_s=threshold_s):
            sees = False
        excess_s = entry.excess[-1][1]
        found.append(
            Heard(entry.peer, excess_s, baselines.get(entry.peer), entry.source, entry.two_way, sees, entry.uid)
        )
    measured = [one for one in found if one.source != REPORT]
    told = in_turns([one for one in found if one.source == REPORT], of=lambda one: one.uid)
    return [*measured, *told][:FLOWS_MAX]


def less_comes_in(state: SignalState, *, now_s: float) -> bool:
    """Whether much comes in, but clearly less than has been seen to: the way in, as we know it, is not what is full."""
    received = _received(state.ticks, now_s=now_s)
    much = received > TWO_WAY_PART * tx_bits_per_s(state, now_s=now_s, window_s=WINDOW_S)
    return much and received < RECEIVED_FULL * state.received_bits_per_s_max


def two_way_high(state: SignalState, *, now_s: float, threshold_s: float, high: int, of: int) -> int:
    """How many two-way destinations see a queue, be it on the way there or back, as in `agree`; 0 unless most do."""
    sees = []
    for entry in state.destinations:
        fresh = [sample for sample in entry.excess[-of:] if sample[0] > now_s - VOTE_S]
        if entry.two_way and fresh:
            sees.append((entry, sum(least_s > threshold_s for _, least_s, _ in fresh) >= high))
    voices = _of_voices(sees, together=_most)
    return _told_apart(sum(voices), (entry.peer for entry, high in sees if high)) if _most(voices) else 0


def losing(state: SignalState, flows: Sequence[FlowSample]) -> int:
    """How many destinations lose packets on the way, each by a voice of its own; 0 unless most that can tell do."""
    known = {flow.key: flow for flow in state.flows}
    lost: list[tuple[FlowSample, tuple[int, int]]] = []
    for sample in flows:
        points = known[sample.key].points if sample.key in known else ()
        if points:
            lost.append((sample, (points[-1][3] - points[0][3], points[-1][2] - points[0][2])))
    voices = [_loses(pair) for pair in _of_voices(lost, together=_summed)]
    sure = [loses for loses in voices if loses is not None]
    return _told_apart(sum(sure), (sample.peer for sample, pair in lost if _loses(pair))) if _most(sure) else 0


def _received(ticks: Sequence[TickState], *, now_s: float) -> float:
    received_bits = elapsed_s = 0.0
    for tick in ticks:
        if tick.at_s > now_s - WINDOW_S + 1e-9:
            received_bits, elapsed_s = received_bits + (tick.received_bits or 0.0), elapsed_s + tick.elapsed_s
    return received_bits / elapsed_s if elapsed_s > 0 else 0.0


def one_way_expected(state: SignalState, *, now_s: float) -> bool:
    """Whether one-way signals come now and then, in the gaps between bursts, so that waiting for one makes sense."""
    return state.one_way_s is not None and state.one_way_s > now_s - GAPS_S


def _most(votes: Sequence[bool]) -> bool:
    return 2 * sum(votes) > len(votes)


class _Speaks(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def uid(self) -> int | None: ...


def _of_voices(
    said: Iterable[tuple[_Speaks, Value]], *, together: Callable[[Sequence[Value]], Value]
) -> list[Value]:  # fmt: skip
    """What each voice says: a destination that our kernel measured by itself, what a user's programs say together."""
    found: list[Value] = []
    by_user: dict[int | None, list[Value]] = {}
    for who, value in said:
        if who.source == REPORT:
            by_user.setdefault(who.uid, []).append(value)
        else:
            found.append(value)
    return [*found, *(together(values) for values in by_user.values())]


def middle_of_voices(said: Iterable[tuple[DestinationState, float]]) -> float | None:
    """The middle one of what destinations say, each user's programs with one voice; None where nobody says anything."""
    voices = _of_voices(said, together=_middle)
    return _middle(voices) if voices else None


def _told_apart(voices: int, peers: Iterable[str]) -> int:
    """Voices that speak of so many destinations."""
    return min(voices, len(set(peers)))


def _one_vote(votes: Sequence[_Vote]) -> _Vote:
    """What several votes come to."""
    total, asked = sum(vote for vote, _ in votes), sum(asked for _, asked in votes)
    sees = _most([vote > 0 for vote, _ in votes]) or min(total, asked) > 0
    together = 1 if sees else min(0, max(-1, total))
    return together, together if any(asked for _, asked in votes) else 0


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _lower_middle(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _loses(pair: tuple[int, int]) -> bool | None:
    """Whether of so many packets lost, of so many sent, the way loses some; None where they are too few to tell."""
    lost, sent = pair
    return True if lost > 0 and lost >= LOSS_PART * sent else False if sent >= LOSS_SENT_SURE else None


def _summed(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(one for one, _ in pairs), sum(other for _, other in pairs)


def clear(state: SignalState, *, two_way: bool, since_s: float, threshold_s: float) -> bool | None:
    """Whether at least half of the destinations of one kind heard of since a time surely see no queue; None: none
    heard."""
    of_kind = [entry for entry in state.destinations if entry.two_way is two_way]
    heard = [(entry, [most_s for at_s, _, most_s in entry.excess[-2:] if at_s >= since_s]) for entry in of_kind]
    worst = _of_voices(((entry, max(excess)) for entry, excess in heard if excess), together=_lower_middle)
    return _lower_middle(worst) <= threshold_s if worst else None


def arrives(state: SignalState, *, now_s: float) -> bool:
    """Whether what left in the last second came through as well: then the path carries it, whatever delay says."""
    if state.covered <= COVERED_MIN:
        return False
    left = tx_bits_per_s(state, now_s=now_s, window_s=ARRIVAL_S)
    return through_bits_per_s(state, now_s=now_s, window_s=ARRIVAL_S) >= ARRIVED * left > 0


def forget(state: SignalState, *, before_s: float) -> SignalState:
    """Drop delay signals and ignore those that were measured before a time: they describe a rate that is over."""
    return replace(state, destinations=(), ignore_before_s=before_s)


def rebase(state: SignalState) -> SignalState:
    """Take today's delay as the path's own: new baselines are learned from here."""
    flows = tuple(replace(flow, baseline_s=None, way_least_s=()) for flow in state.flows)
    return replace(state, flows=flows, destinations=())


def peak_tx_bits_per_s(state: SignalState, *, now_s: float) -> float:
    """The most that left in any tenth of the last second: what a burst's beginning puts into a queue elsewhere."""
    peak = bits = elapsed_s = 0.0
    for tick in state.ticks:
        if tick.at_s <= now_s - PEAK_S:
            continue
        bits, elapsed_s = bits + tick.sent_bits, elapsed_s + tick.elapsed_s
        if elapsed_s >= PEAK_PART_S:
            peak, bits, elapsed_s = max(peak, bits / elapsed_s), 0.0, 0.0
    return peak


def tx_bits_per_s(state: SignalState, *, now_s: float, window_s: float) -> float:
    """What left the interface over a window."""
    sent_bits = elapsed_s = 0.0
    for tick in state.ticks:
        if tick.at_s > now_s - window_s + 1e-9:
            sent_bits, elapsed_s = sent_bits + tick.sent_bits, elapsed_s + tick.elapsed_s
    return sent_bits / elapsed_s if elapsed_s > 0 else 0.0


def through_bits_per_s(state: SignalState, *, now_s: float, window_s: float = WINDOW_S) -> float:
    """What the reported connections delivered over a window, on the wire's scale."""
    delivered = 0.0
    for flow in state.flows:
        delivered += delivery(flow, now_s=now_s, window_s=window_s)
    return state.wire_ratio * delivered


def delivered_by_flow(state: SignalState, *, now_s: float) -> dict[str, float]:
    """What each connection that is listened to delivered over the last second, bits per second on the wire's scale."""
    return {flow.key: state.wire_ratio * delivery(flow, now_s=now_s, window_s=1.0) for flow in state.flows}


def _tick(
    now_s: float, elapsed_s: float, classes: Sequence[ClassSample], sent_bits: Sequence[float],
    received_bits: float | None, dropped_packets: int,
) -> TickState:  # fmt: skip
    backlog_bytes = tuple(entry.backlog_bytes for entry in classes)
    return TickState(
        at_s=now_s,
        elapsed_s=elapsed_s,
        sent_bits=math.fsum(sent_bits),
        received_bits=received_bits,
        lost_packets=0,
        sent_packets=0,
        dropped_packets=dropped_packets,
        backlog_bytes=backlog_bytes,
        queue_s=_queues_s(backlog_bytes, sent_bits, elapsed_s=elapsed_s),
    )


def _ticks_before(
    ticks: Sequence[TickState], *, now_s: float, sent_bits: Sequence[float], elapsed_s: float
) -> list[TickState]:
    """The ticks to remember. What waited at the last one left at the rate of this one, which is known only now: a class
    may be starved from one to the next."""
    kept = [tick for tick in ticks if tick.at_s > now_s - HISTORY_S]
    if kept:
        left_s = _queues_s(kept[-1].backlog_bytes, sent_bits, elapsed_s=elapsed_s)
        kept[-1] = replace(kept[-1], queue_s=left_s)
    return kept


def _queues_s(backlog_bytes: Sequence[int], sent_bits: Sequence[float], *, elapsed_s: float) -> tuple[float, ...]:
    return tuple(_queue_s(size, bits / elapsed_s) for size, bits in zip(backlog_bytes, sent_bits, strict=True))


def _queue_s(backlog_bytes: int, rate_bits_per_s: float) -> float:
    """How long a class' backlog takes to leave at the rate at which the class leaves; at most 10 s."""
    if backlog_bytes <= 0:
        return 0.0
    return min(10.0, backlog_bytes * 8 / max(rate_bits_per_s, 1.0))


def _chosen(flows: Sequence[FlowSample]) -> list[FlowSample]:
    """Those that are looked at: of the kernel's the busiest, of programs' likewise, but of each user as many."""
    fresh = [flow for flow in flows if flow.age_s < FLOW_STALE_S and flow.delivered_bytes is not None]
    if len(fresh) > FLOWS_MAX:
        fresh.sort(key=lambda flow: (flow.source != PROBE, -(flow.delivered_bytes or 0), flow.key))
        measured = [flow for flow in fresh if flow.source != REPORT]
        told = in_turns([flow for flow in fresh if flow.source == REPORT], of=lambda flow: flow.uid)
        places = max(MEASURED_PLACES, FLOWS_MAX - len(told))
        fresh = [*measured[:places], *told][:FLOWS_MAX]
    return sorted(fresh, key=lambda flow: flow.key)


def in_turns(entries: Iterable[Value], *, of: Callable[[Value], object]) -> list[Value]:
    """The first of each, then the second of each, and so on; each one's in their order."""
    taken: Counter[object] = Counter()
    turns = []
    for entry in entries:
        turns.append((taken[of(entry)], entry))
        taken[of(entry)] += 1
    return [entry for _, entry in sorted(turns, key=lambda turn: turn[0])]


def _is_two_way(sample: FlowSample, ticks: Sequence[TickState], *, at_s: float) -> bool:
    """Whether a round trip may have waited in a queue towards us: while much came in, or, where it is not known what
    comes in, whenever training sends (in an all-reduce everybody does at once)."""
    if ticks[-1].received_bits is None:
        return sample.traffic_class == "compute"
    return _much_came_in(ticks, since_s=at_s - (sample.rtt_s or 0.0) - QUEUE_LOOK_BACK_S)


def _note(excess: dict[_Told, Span], destination: _Told, span: Span) -> None:
    """Of a destination's connections the one that waits least counts: what it waits in, all wait in."""
    least_s, most_s = excess.get(destination, span)
    excess[destination] = (min(least_s, span[0]), min(most_s, span[1]))


def _much_came_in(ticks: Sequence[TickState], *, since_s: float) -> bool:
    """Whether so much came in since a time that acknowledgements may have waited in a queue towards us."""
    received = sent = 0.0
    for tick in ticks:
        if tick.at_s >= since_s:
            received, sent = received + (tick.received_bits or 0.0), sent + tick.sent_bits
    return received > TWO_WAY_PART * sent


def _destinations(
    before: Sequence[DestinationState], excess: Mapping[_Told, Span], asked: Mapping[_Told, float],
    sources: Mapping[_Told, str], *, now_s: float,
) -> tuple[DestinationState, ...]:  # fmt: skip
    known = {_told(entry): entry for entry in before if entry.excess[-1][0] > now_s - 2 * ACTIVE_S}
    for told, (least_s, most_s) in excess.items():
        entry = known.get(told, DestinationState(told.peer, told.two_way, sources[told], told.uid))
        known[told] = replace(
            entry,
            source=sources[told],
            asked=told in asked,
            excess=(*entry.excess[-7:], (now_s, least_s, most_s)),
            others_s=asked.get(told, 0.0),
        )
    return tuple(known[told] for told in sorted(known, key=_in_order))


def _told(entry: DestinationState) -> _Told:
    return _Told(entry.peer, entry.two_way, entry.source == REPORT, entry.uid)


def _in_order(told: _Told) -> tuple[str, bool, bool, int]:
    return told.peer, told.two_way, told.told, -1 if told.uid is None else told.uid


def _loss(state: SignalState, *, now_s: float, after_drain: bool = False) -> tuple[int, int]:
    """Packets lost on the way and sent, in the last second: what our own queues dropped lately does not count.

    `after_drain`: of these what was sent after the last cut's drain.
    """
    lag_s = LOSS_LAG_S if after_drain and state.ignore_before_s > 0 else 0.0
    since_s = max(now_s - 1.0, state.ignore_before_s + lag_s)
    lost = sent = dropped = 0
    for tick in state.ticks:
        dropped += tick.dropped_packets
        if tick.at_s > since_s:
            lost += tick.lost_since_packets if after_drain else tick.lost_packets
            sent += tick.sent_since_packets if after_drain else tick.sent_packets
    return max(0, lost - dropped), sent


def _learn(state: SignalState, *, now_s: float) -> SignalState:
    """Learn how wire bytes relate to delivered ones while no queue grows anywhere."""
    lost, sent = _loss(state, now_s=now_s)
    if lost >= max(LOSS_PACKETS_MIN, LOSS_PART * sent):
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
