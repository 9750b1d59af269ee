"""The receiver's side of holds: decide how much storage each sender may send us, and what to ask of its broker.

The queue in front of our link is in a switch or at the provider. It is first come, first served, and a storage host
with a faster link fills it. Only the sender can hold storage back, so we ask its broker (`Hold`). Where there is none,
or it refuses, our IFB drops what exceeds storage's share of the link.

    no burst for 10 s               storage is free
    between bursts                  what others leave of 0.95 of the link: there is no queue when a burst begins
    a burst comes in                the floor; what training has never used, where that is more than half of the link;
                                    after 0.3 s what it has not used so far, where no IFB holds storage
    a burst that was not announced  the guarantee: it is seen 15 ms late, and no program announced it
    comes in (bursts.detector)
    the burst is over, or does not  as between bursts, at once
    come after 0.3 s
    storage is owed over its window what repays it, burst or not

`broker.law.holds.senders` divides what storage may send among its senders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts import detector, inbound, tracker
from broker.law.bursts.announced import START_S, USED_MIN, start_s
from broker.law.capacity import inbound as inbound_capacity
from broker.law.capacity.decrease import DRAIN_FACTOR
from broker.law.capacity.inbound_delay import HELD_FOR_S, OutboundLoad
from broker.law.holds import ifb_delay, request_status, senders
from broker.law.inbound_state import InboundBurstState, IngressState
from broker.law.sharing import guarantee
from broker.law.sharing.promises import LENDER, Promises, promises
from broker.law.state import BurstState
from broker.model.leases import Hold
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, Burst, InterfaceAllocation, InterfaceSample, Watch
from broker.policy.types import InterfacePolicy, Policy

IDLE_S = 10.0
"""Storage is free after so long without a burst. Outer rounds of tens of seconds meet a full queue once at their
beginning."""
OTHERS_ROOM = 1.1
"""Other inbound traffic may grow by a tenth before the next reading."""
PEAK_LOW, PEAK_ROOM = 0.5, 1.15
"""A job whose last five bursts never reached half of our rate is limited elsewhere. Storage gets the rest, less room
for the job to become 15 % faster from burst to burst."""
STORED_MIN = 0.05
"""Storage below this part of our rate disturbs no other class, so it causes no reading between ticks."""
LEASE_S = 0.9
"""The length of a lease: if our daemon ends, senders are free again before a second has passed."""
BROKERLESS_S = 60.0
"""An IFB is kept for so long after storage from a host without a broker: a new one for each file costs more."""


class InboundDecision(Struct, frozen=True):
    """The decision on one interface's inbound direction."""

    state: IngressState
    allocation: InterfaceAllocation
    holds: tuple[Hold, ...]
    alarms: tuple[Alarm, ...]
    again_s: float | None
    watch: Watch | None = None


def decide_ingress(
    *, now_s: float, state: IngressState, sample: InterfaceSample | None, credited: Sequence[BurstState],
    out: OutboundLoad, interface: InterfacePolicy, policy: Policy,
) -> InboundDecision:  # fmt: skip
    """Decide what storage may send towards one interface.

    Args:
        now_s: the tick's time.
        state: of the last tick.
        sample: what was measured; None where the interface is not there.
        credited: how far this tick's bursts through the interface are believed (`broker.law.bursts.announced`).
        out: the state of the outbound direction.
        interface: its policy; `ingress` is set.
        policy: the classes' promises.
    """
    samples = sample.senders if sample is not None else ()
    arriving = sample.arriving if sample is not None else ()
    state = replace(state, ifb=ifb_delay.follow(state.ifb, arriving, now_s=now_s))
    estimate = _capacity(state, sample, interface, out, now_s=now_s)
    rate, source = estimate.rate_bits_per_s, estimate.source
    before = state = replace(state, capacity=estimate.state)
    slower = min(rate, out.bits_per_s)
    bursts, state = _bursts(state, sample, credited, slower=slower, now_s=now_s)
    state = senders.count(
        state, samples, received_bytes=sample.received_bytes if sample is not None else None, now_s=now_s
    )
    state = inbound.follow(
        state, bursts, beside_bits=senders.beside_bits(state, now_s=now_s),
        fresh=senders.are_fresh(state, now_s=now_s), capacity_bits_per_s=rate, now_s=now_s,
    )  # fmt: skip
    own = promises(policy.class_policy(LENDER), rate)
    window_s = policy.class_policy(LENDER).guarantee_window_s
    elapsed_s = now_s - before.at_s if before.at_s is not None else 0.0
    limited = any(senders.limited(entry) for entry in state.senders)
    might_use_more = before.allowance_bits_per_s > own.floor
    state = replace(
        state,
        account=guarantee.account(
            state.account, received_bits=state.storage_bits - before.storage_bits, guarantee_bits_per_s=own.guarantee,
            window_s=window_s, elapsed_s=elapsed_s, waiting=limited, now_s=now_s,
        ),
        senders=senders.judge(state, elapsed_s=elapsed_s) if might_use_more else state.senders,
    )  # fmt: skip
    reported = {entry.address: entry for entry in senders.storage_of(samples)}
    owed = guarantee.repay_rate_bits_per_s(state.account, guarantee_bits_per_s=own.guarantee, window_s=window_s)
    in_kernel = _wants_ifb(state, interface, now_s=now_s)
    allowance, why = _allowance(
        state, own, rate, owed=owed, window_s=window_s, draining=estimate.draining, in_kernel=in_kernel,
        now_s=now_s,
    )  # fmt: skip
    if source == "fallback":
        allowance, why = None, Because.INGRESS_UNKNOWN()
    allowed: Mapping[str, int] = {}
    if allowance is not None:
        allowed = senders.divide(state, reported, allowance_bits_per_s=allowance, floor_bits_per_s=own.floor)
    state = replace(
        state, allowance_bits_per_s=allowance or 0, senders=senders.allow(state, allowed, now_s=now_s)
    )  # fmt: skip
    again = [
        inbound.look_again_s(state, capacity_bits_per_s=rate) if allowance else None,
        detector.quiet_in_s(state.observed, now_s=now_s),
    ]
    close = _look_closely(state, rate, now_s=now_s)

    return InboundDecision(
        state=state,
        allocation=request_status.allocation(
            interface.name, state, policy, estimate, why, allowance, in_kernel=in_kernel
        ),
        holds=_holds(allowed, rate, why),
        alarms=request_status.alarms(
            interface,
            reported,
            policy,
            estimate,
            inbound_capacity.base_rate(interface, sample),
            in_kernel=in_kernel,
            holding=bool(allowance),
        ),
        again_s=min((time_s for time_s in again if time_s is not None), default=None),
        watch=detector.watch(interface.name, state.observed, slower_bits_per_s=slower) if close else None,
    )


def _capacity(
    state: IngressState, sample: InterfaceSample | None, interface: InterfacePolicy, out: OutboundLoad, *, now_s: float
) -> inbound_capacity.InboundEstimate:
    lately = frozenset(
        entry.address for entry in state.senders if entry.held_s is not None and now_s - entry.held_s < HELD_FOR_S
    )
    here = _wants_ifb(state, interface, now_s=now_s)
    return inbound_capacity.estimate(
        now_s=now_s,
        state=state.capacity,
        base=inbound_capacity.base_rate(interface, sample),
        received_bytes=sample.received_bytes if sample is not None else None,
        flows=sample.flows if sample is not None else (),
        senders=sample.senders if sample is not None else (),
        held=lately,
        limited=any(senders.limited(entry) for entry in state.senders) or (here and _limited_here(state)),
        out=out,
        holding=here or any(entry.allowed_bits_per_s for entry in state.senders),
        here=ifb_delay.waits_s(state.ifb, now_s=now_s),
    )


def _allowance(
    state: IngressState, own: Promises, rate: int, *, owed: int, window_s: float, draining: bool,
    in_kernel: bool, now_s: float,
) -> tuple[int | None, Reason]:  # fmt: skip
    """The rate of all storage towards us, None where it is free, and the reason."""
    if state.training_s is None or now_s - state.training_s > IDLE_S:
        return None, Because.NOTHING_TO_PROTECT()
    coming = [burst for burst in state.bursts if _deserves_room(burst, rate, now_s=now_s)]
    why: Reason
    if coming and coming[0].uid == detector.USER:
        room = max(own.guarantee, _unused_by(coming, state, rate, in_kernel=in_kernel, now_s=now_s))
        why = Because.BURST_SEEN(rate_bits_per_s=room)
    elif coming:
        room = max(own.floor, _unused_by(coming, state, rate, in_kernel=in_kernel, now_s=now_s))
        why = Because.BURST_COMES(job=coming[0].job, step=coming[0].step, rate_bits_per_s=room)
    else:
        beside = inbound.others_bits_per_s(state)
        if any(not burst.over for burst in state.bursts):  # it arrives, but is not worth a hold
            beside += state.training_bits_per_s or 0.0
        carried = DRAIN_FACTOR * rate if draining else rate
        room = max(own.floor, own.guarantee, int(carried - OTHERS_ROOM * beside))
        why = Because.LEAVES_ROOM(rate_bits_per_s=min(room, own.ceiling), capacity_bits_per_s=rate)
    if owed > room:
        room = min(rate, owed)
        why = Because.INBOUND_GUARANTEE_REPAID(rate_bits_per_s=min(room, own.ceiling), window_s=window_s)
    return max(1, min(room, own.ceiling)), why


def _bursts(
    state: IngressState, sample: InterfaceSample | None, credited: Sequence[BurstState], *, slower: int, now_s: float
) -> tuple[tuple[Burst, ...], IngressState]:
    """The bursts in progress: the announced ones, and one that was observed without announcement."""
    announced = _believed(sample.bursts if sample is not None else (), credited)
    if any(_explains(burst, slower) for burst in announced):
        state = replace(state, announced_s=now_s)
    seen, burst = detector.follow(
        state.observed, sample, slower_bits_per_s=slower, announced_s=state.announced_s, now_s=now_s
    )  # fmt: skip
    training_s = state.training_s if seen.training_s is None else max(seen.training_s, state.training_s or 0.0)
    state = replace(state, observed=seen, training_s=training_s)
    return (announced if burst is None else (*announced, burst)), state


def _explains(burst: Burst, slower_bits_per_s: int) -> bool:
    """Whether an announced burst may explain what training sends now: it is new, or its bytes last so long.

    A burst of a byte explains nothing, whatever its deadline.
    """
    at_least_use_s = burst.announced_bytes * 8 / (USED_MIN * slower_bits_per_s)
    return burst.age_s < start_s(burst.announced_bytes, capacity_bits_per_s=slower_bits_per_s) + at_least_use_s


def _look_closely(state: IngressState, rate: int, *, now_s: float) -> bool:
    """Whether to watch for an unannounced burst: training is active, and storage arrives."""
    if state.observed.training_s is None or now_s - state.observed.training_s > IDLE_S:
        return False
    if detector.is_announced(state.observed, state.announced_s):
        return False
    return math.fsum(entry.most_bits_per_s for entry in state.senders) >= STORED_MIN * rate


def _believed(bursts: Sequence[Burst], credited: Sequence[BurstState]) -> tuple[Burst, ...]:
    """The bursts that have credit, each reduced to its credit, which also bounds the inbound direction."""
    credit = {tracker.identity(entry): entry.credited_bytes for entry in credited}
    believed = (replace(one, announced_bytes=credit.get(tracker.identity(one), 0)) for one in bursts)
    return tuple(one for one in believed if one.announced_bytes > 0)


def _deserves_room(burst: InboundBurstState, rate: int, *, now_s: float) -> bool:
    """New bursts, and older ones while training arrives, until they are over.

    A small burst is new for no longer than it takes at the least use.
    """
    if burst.over:
        return False
    has_come = burst.used_s > burst.started_s
    new_s = START_S if has_come else start_s(burst.announced_bytes, capacity_bits_per_s=rate)
    return now_s - burst.used_s < new_s


def _unused_by(
    coming: Sequence[InboundBurstState], state: IngressState, rate: int, *, in_kernel: bool, now_s: float
) -> int:
    """The rate that training leaves unused during its bursts.

    It is what training has not used so far in longer bursts, or never used in its last ones, where that is more than
    half of the link; else nothing. An IFB (`in_kernel`) admits no storage into an announced burst before its end. What
    it drops has already passed the link and made a queue there, which training's sender attributes to itself.
    """
    others = inbound.others_bits_per_s(state)
    announced = coming[0].uid != detector.USER
    if all(now_s - burst.started_s >= START_S for burst in coming) and not (in_kernel and announced):
        peak = max(burst.peak_bits_per_s for burst in coming)  # each one's peak is that of all together
        return max(0, int(rate - PEAK_ROOM * peak - others))
    return _never_used(sorted({tracker.owner(burst) for burst in coming}), state, rate)


def _never_used(jobs: Sequence[tuple[int, str]], state: IngressState, rate: int) -> int:
    """The rate that jobs (by user and name) never used in their last bursts."""
    peaks = [inbound.peak_bits_per_s(state, who) for who in jobs]
    if any(peak is None or peak > PEAK_LOW * rate for peak in peaks):
        return 0
    others = inbound.others_bits_per_s(state)
    return max(0, int(rate - PEAK_ROOM * math.fsum(peak for peak in peaks if peak is not None) - others))


def _limited_here(state: IngressState) -> bool:
    """Whether storage would use a higher rate of our IFB: it has a backlog there, or it uses its whole rate."""
    if ifb_delay.wait_s(state.ifb, LENDER) > 0:
        return True
    return senders.rate_bits_per_s(state) >= senders.LIMITED * state.allowance_bits_per_s > 0


def _wants_ifb(state: IngressState, interface: InterfacePolicy, *, now_s: float) -> bool:
    if interface.ingress_bits_per_s is None or state.brokerless_s is None:
        return False
    return now_s - state.brokerless_s <= BROKERLESS_S


def _holds(allowed: Mapping[str, int], rate: int, why: Reason) -> tuple[Hold, ...]:
    """The requests to send. A sender's guarantee counts for its part of the allowance."""
    total = sum(allowed.values())
    return tuple(
        Hold(address, LENDER, held, max(held, rate * held // total), LEASE_S, why)
        for address, held in sorted(allowed.items())
    )
