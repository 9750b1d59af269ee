"""Raise the capacity in steps, whenever our own limit has been the bottleneck for a while and no queue shows.

Near the rate that failed last a step is 3 %. Where arrivals are measured, it has to be confirmed: after half a second
of use a full bottleneck would show 15 ms, and a packet that left meanwhile has to wait less. Above that rate such a
packet makes steps 6 %; well above it they double, to 20 %, one each 0.3 s.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.capacity.delivery_rate import threshold_s
from broker.law.capacity.evidence import PROBE_DELAY_S, Direction, Evidence, Room
from broker.law.capacity.state import CapacityState, Phase, Probe

BUSY_S = 0.3
"""Our limit has to be the bottleneck for so long before a probe: one detection time."""
PROBE_STEP, PROBE_STEP_MAX = 0.03, 0.2
NEAR, SLOWLY, BESIDE, BEYOND = 0.97, 1.02, 1.04, 1.12
"""3 % over a bottleneck adds 30 ms of queue a second: seen within a second, harmless until then. What failed last is
known to 5 % or so: up to 2 % over it steps are no larger, up to 4 % a raise has to prove itself, and 12 % over it the
back-off is forgotten. At 20 % a step overshoots by 60 ms of queue."""
PROBE_WATCH_S = 1.5
"""A short delay is attributed to a raise for so long after it."""
CONFIRM_S = 0.5
"""Full for so long, a raise of 3 % has made 15 ms of queue: above `PROBE_DELAY_S`. Where more than that counts as none,
on slow links and between hosts that are late, the larger step that follows is less well proven: to go without it there
made people wait 10 ms less, and rises take twice as long."""
JITTERS, JITTER_S_MAX, JITTER_GAIN = 5, 0.004, 0.3
"""Where hosts read packets up to 20 ms late, two of three exceed 12 ms in one tick of eight without any queue. Then
nearly every probe fails: a rise was not found in 10 s. Such waits also vary between probes, so their jitter is
measured then. The allowance is 20 ms at most, because it may delay people's packets."""
HOLD_S, DISPUTED_S = 1.0, 3.0
"""A second passes before the first probe. While a minority sees a queue, a raise waits three seconds: it is often
right, and the others see the queue a moment later. A constant minority delays raises but does not prevent them."""
FORGET_EVERY_S = 1.0
"""One step a second is slow enough for a program that begins to report to stop the rise."""


def may_raise(state: CapacityState, evidence: Evidence, *, now_s: float) -> bool:
    """Whether a higher rate may be tried now."""
    room, rate = evidence.room, state.rate_bits_per_s
    pause_s = 0.0 if state.phase in (Phase.PROBING, Phase.SETTLED) else max(HOLD_S, state.probe.back_off_s)
    if room.disputed:
        pause_s = DISPUTED_S
    if rate >= state.base_bits_per_s or state.busy_s < BUSY_S or now_s - state.changed_s < pause_s:
        return False
    if beside(state) and evidence.carried.reported and state.phase is Phase.PROBING and not _confirmed(state, room):
        return False
    return room.clear and int(rate) < room.most_bits_per_s


def beside(state: CapacityState, *, upto: float = BESIDE) -> bool:
    """Whether the rate is close to the one that failed last."""
    failed = state.cut.carried_bits_per_s if state.cut is not None else 0
    return NEAR * failed < state.rate_bits_per_s < upto * failed


def raised(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Raise the rate by a step."""
    before, room, rate = state.probe, evidence.room, state.rate_bits_per_s
    failed = state.cut.carried_bits_per_s if state.cut is not None else 0
    surely_more = state.cut.surely_more_bits_per_s if state.cut is not None else 0
    probing = state.phase is Phase.PROBING
    step = before.step or PROBE_STEP
    if rate >= SLOWLY * failed and room.wait_s is not None and _confirmed(state, room):
        step = max(step, 2 * PROBE_STEP)
    settled, jitter_s = before.settled_bits_per_s, before.jitter_s
    if not probing:
        settled = rate if room.settled else 0
    if not probing and room.jitter_s is not None:
        jitter_s += JITTER_GAIN * (room.jitter_s - jitter_s)
    return replace(
        state,
        rate_bits_per_s=int(min(state.base_bits_per_s, int(rate * (1 + step)), room.most_bits_per_s)),
        changed_s=now_s,
        busy_s=0.0,
        probe=replace(
            before,
            before_bits_per_s=rate,
            settled_bits_per_s=settled,
            since_s=now_s if before.since_s is None else before.since_s,
            step=min(PROBE_STEP_MAX, 2 * step) if probing and rate >= surely_more else step,
            back_off_s=before.back_off_s if rate < BEYOND * failed else 0.0,
            jitter_s=jitter_s,
        ),
    )


def shown(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Raise the capacity to the rate that passed without a queue."""
    rate = min(state.base_bits_per_s, int(evidence.carried.least_bits_per_s))
    episode = replace(state.episode, cuts=0)
    changed_s = state.changed_s if state.phase is Phase.DOUBTING else now_s
    return replace(state, rate_bits_per_s=rate, changed_s=changed_s, episode=episode)


def followed(state: CapacityState, room: Room) -> Probe:
    """Mark the last raises as proven where the carried rate shows it."""
    if room.proven and state.probe.since_s is not None:
        return replace(state.probe, settled_bits_per_s=state.rate_bits_per_s, since_s=None)
    return state.probe


def is_unproven(state: CapacityState, direction: Direction, *, now_s: float) -> bool:
    """Whether the last raises have waited for their proof for too long."""
    since_s = state.probe.since_s
    return state.phase is Phase.PROBING and since_s is not None and now_s - since_s >= direction.proof_s


def taken_back(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Undo raises that nothing proves."""
    rate = min(state.base_bits_per_s, state.probe.settled_bits_per_s)
    last = state.cut
    if last is not None:
        last = replace(last, carried_bits_per_s=rate, surely_more_bits_per_s=int(BESIDE * rate))
    probe = replace(state.probe, step=PROBE_STEP, since_s=None)
    return replace(state, rate_bits_per_s=rate, changed_s=now_s, busy_s=0.0, cut=last, probe=probe)


def may_forget(state: CapacityState, direction: Direction) -> bool:
    """Whether the estimate has to rise unmeasured, because nothing has reported for long."""
    return state.rate_bits_per_s < state.base_bits_per_s and state.unreported_s >= direction.forget_s


def forgotten(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Raise the rate by a step towards the base, without measurement."""
    rate = state.rate_bits_per_s
    return replace(
        state,
        rate_bits_per_s=int(min(state.base_bits_per_s, rate * (1 + direction.forget_step))),
        changed_s=now_s,
        busy_s=0.0,
        unreported_s=state.unreported_s - FORGET_EVERY_S,
        probe=replace(state.probe, before_bits_per_s=rate, settled_bits_per_s=0),
    )


def raised_lately(state: CapacityState, *, now_s: float) -> bool:
    """Whether the last change was a raise so recent that its queue may only now show."""
    return state.phase in (Phase.PROBING, Phase.FORGETTING) and now_s - state.changed_s <= PROBE_WATCH_S


def late_s(state: CapacityState) -> float:
    """The wait from which on a packet met a queue of the raise."""
    jitter_s = min(state.probe.jitter_s, JITTER_S_MAX)
    return max(threshold_s(PROBE_DELAY_S, state.rate_bits_per_s), JITTERS * jitter_s)


def _confirmed(state: CapacityState, room: Room) -> bool:
    """Whether a raise was used long enough for its queue to show, and shows none; no sample counts as none."""
    used = state.phase is Phase.PROBING and state.busy_s >= CONFIRM_S
    return used and (room.wait_s is None or room.wait_s <= late_s(state))
