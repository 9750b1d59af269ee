"""The way up: a little more whenever the shaper has been the limit and no queue shows.

Beside what failed last a step is 3 %, and where arrivals are known it has to prove itself: it is used for half a
second, after which a bottleneck that is full would show 15 ms, and a packet that left meanwhile has to have found less.
Past it such a packet makes steps 6 %; surely past it they double, to 20 %, one each 0.3 s.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from msgspec.structs import replace

from broker.law.capacity import delivery_rate, quorum, signals
from broker.law.capacity.decrease import PROBE_STEP
from broker.law.state import ArrivalState, CapacityState

BUSY_S = 0.3
BUSY_UNSEEN_S = 1.0
SEEN_AFTER_S = 0.2
"""How long it has to be the limit before a probe: one detection time, or three when no destination says anything.
A sample tells about the last raise when it was taken this much later: a tick until it is applied, and a round trip."""
PROBE_DELAY_S = 0.012
JITTERS, JITTER_S_MAX, JITTER_GAIN = 5, 0.004, 0.3
"""Where hosts read packets up to 20 ms late, two of three exceed 12 ms in one tick of eight though no queue stands, and
nearly every probe fails: a rise was not found in 10 s. Such waits differ while nothing is tried, too. At most 20 ms for
it, which people may have to wait."""
PROBE_STEP_MAX = 0.2
NEAR, SLOWLY, BESIDE, BEYOND = 0.97, 1.02, 1.04, 1.12
"""3 % over a bottleneck adds 30 ms of queue a second: seen within a second, harmless until then. What failed last is
known to 5 % or so: up to 2 % over it steps are no larger, up to 4 % a raise has to prove itself, and 12 % over it the
back-off is forgotten. At 20 % a step overshoots by 60 ms of queue."""
CONFIRM_S = 0.5
"""Full for so long, a raise of 3 % has made 15 ms of queue: above `PROBE_DELAY_S`. Where more than that counts as none,
on slow links and between hosts that are late, the larger step that follows is less well proven: to go without it there
made people wait 10 ms less, and rises take twice as long."""
STOOD_OF, STOOD_LATE = 5, 0.25
"""A rate stood if of at least five packets at most a quarter met a queue: a host that holds packets up for 150 ms
delays two, one whose bursts are too much half of them."""
UNHEARD_S, FORGET_S = 60.0, 1.0
"""For so long the shaper was the limit and no connection told anything, as where all is UDP of programs that report
nothing: then what was found is as old as a window of guarantees. 3 % a second take a fifth of a link to all of it in
55 s, and who is heard again can say so before that."""
FORGETTING = "forgetting"
RAISE_LOSS = 0.01
"""No probe while most votes that can tell lose more than 1 % on the way: a lossy Wi-Fi stays below, a full short
buffer does not."""


def may_raise(state: CapacityState, now: signals.Signals, *, now_s: float) -> bool:
    """Whether more may be tried now."""
    if state.rate_bits_per_s >= state.base_bits_per_s or now_s - state.changed_s < state.hold_s:
        return False
    if now.flows == 0:
        return False
    beside = NEAR * state.failed_bits_per_s < state.rate_bits_per_s < BESIDE * state.failed_bits_per_s
    reported = delivery_rate.is_reported(state.signals.arrivals)
    if state.changed_by == "raise" and beside and reported and not _confirmed(state, heard=False):
        return False
    since_s = state.changed_s + SEEN_AFTER_S if state.changed_by == "raise" else state.changed_s
    threshold_s = late_s(state)
    one_way = quorum.clear(state.signals, two_way=False, since_s=since_s, threshold_s=threshold_s)
    two_way = quorum.clear(state.signals, two_way=True, since_s=since_s, threshold_s=threshold_s)
    if one_way is False or state.busy_s < BUSY_S:
        return False
    if one_way or two_way:
        return True
    arrives = signals.arrives(state.signals, now_s=now_s)
    if not signals.one_way_expected(state.signals, now_s=now_s):
        return state.busy_s >= BUSY_UNSEEN_S and (arrives or now.through_bits_per_s is None)
    near = NEAR * state.failed_bits_per_s < state.rate_bits_per_s < BEYOND * state.failed_bits_per_s
    return arrives and not near  # beside what failed, only a gap between bursts can tell


def listened(state: CapacityState, now: signals.Signals, *, limiting_s: float) -> CapacityState:
    """Count for how long the shaper has been the limit while nobody told anything."""
    unheard_s = 0.0 if now.flows else state.unheard_s + limiting_s
    return state if unheard_s == state.unheard_s else replace(state, unheard_s=unheard_s)


def may_forget(state: CapacityState, *, now_s: float) -> bool:
    """Whether what was found is to be forgotten, step by step, because nobody can say whether it still holds."""
    lower = state.rate_bits_per_s < state.base_bits_per_s
    return lower and state.unheard_s >= UNHEARD_S and state.busy_s >= FORGET_S and now_s - state.changed_s >= FORGET_S


def forgetting(state: CapacityState, *, now_s: float) -> CapacityState:
    """Give a step back."""
    rate = state.rate_bits_per_s
    return replace(
        state,
        rate_bits_per_s=min(state.base_bits_per_s, int(rate * (1 + PROBE_STEP))),
        rate_before_raise_bits_per_s=rate,
        settled_bits_per_s=0,
        raised_s=now_s,
        changed_s=now_s,
        busy_s=0.0,
        changed_by=FORGETTING,
    )


def raised(state: CapacityState, *, now_s: float) -> CapacityState:
    """Try a step more."""
    step, rate = state.step or PROBE_STEP, state.rate_bits_per_s
    if rate >= SLOWLY * state.failed_bits_per_s and _confirmed(state, heard=True):
        step = max(step, 2 * PROBE_STEP)
    sure = state.changed_by == "raise" and rate >= state.surely_more_bits_per_s
    return replace(
        state,
        rate_bits_per_s=min(state.base_bits_per_s, int(rate * (1 + step))),
        rate_before_raise_bits_per_s=rate,
        settled_bits_per_s=_settled(state),
        jitter_s=_jitter_s(state),
        raised_s=now_s,
        changed_s=now_s,
        hold_s=BUSY_S,
        back_off_s=state.back_off_s if rate < BEYOND * state.failed_bits_per_s else 0.0,
        step=min(PROBE_STEP_MAX, 2 * step) if sure else step,
        busy_s=0.0,
        changed_by="raise",
    )


def _settled(state: CapacityState) -> int:
    """The last rate at which packets met no queue while nothing more was tried; 0: it made one, or nobody tells."""
    if state.changed_by == "raise":
        return state.settled_bits_per_s
    waits_s, threshold_s = [entry.wait_s for entry in _arrivals(state)], late_s(state)
    late = sum(wait_s > threshold_s for wait_s in waits_s)
    return state.rate_bits_per_s if len(waits_s) >= STOOD_OF and late <= STOOD_LATE * len(waits_s) else 0


def _confirmed(state: CapacityState, *, heard: bool) -> bool:
    """Whether a raise beside what failed last has been used for long enough for its queue to show, and shows none.

    `heard`: it counts only if a packet that left meanwhile said so; else silence does, too.
    """
    if state.changed_by != "raise" or state.busy_s < CONFIRM_S:
        return False
    since_s = state.changed_s + CONFIRM_S / 2
    last = {entry.peer: entry.wait_s for entry in state.signals.arrivals if entry.left_s >= since_s}
    return statistics.median(last.values()) <= late_s(state) if last else not heard


def late_s(state: CapacityState) -> float:
    """From which wait on a packet met a queue of what was tried."""
    return max(
        delivery_rate.threshold_s(PROBE_DELAY_S, state.rate_bits_per_s), JITTERS * min(state.jitter_s, JITTER_S_MAX)
    )


def _jitter_s(state: CapacityState) -> float:
    """By how much a peer's waits differ from one to the next where nothing more is tried, the middle one, as a running
    mean; as it was where too few tell."""
    if state.changed_by in ("raise", FORGETTING):
        return state.jitter_s
    apart_s = [abs(late.wait_s - soon.wait_s) for soon, late in pairwise(_arrivals(state)) if late.peer == soon.peer]
    if len(apart_s) < STOOD_OF - 1:
        return state.jitter_s
    return state.jitter_s + JITTER_GAIN * (statistics.median(apart_s) - state.jitter_s)


def _arrivals(state: CapacityState) -> list[ArrivalState]:
    """Packets that left since the last move, once its queue had gone: by peer, each peer's in order of time."""
    return [entry for entry in state.signals.arrivals if entry.left_s >= state.changed_s + SEEN_AFTER_S]
