"""What each reading is booked as, whether decided on or taken in later: capacity, calls, and what holds of the policy.

`broker.law.decide` does it with its own reading, `broker.law.catch_up` with those before it; so both remember the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from broker.law.capacity import estimator
from broker.law.reading import Reading
from broker.law.sharing import call_detector, overcommit
from broker.law.sharing.effective_policy import Promised, in_force
from broker.law.sharing.plan import Promises, promises_of
from broker.law.sharing.schedule import ActiveSchedule
from broker.law.state import InterfaceState, PresenceState
from broker.model.values import FlowSample, InterfaceSample
from broker.policy.types import InterfacePolicy, Policy


class Booked(Struct, frozen=True):
    """What the interface can carry, who is on a call, what the policy promises now, and what can be kept of that."""

    estimate: estimator.CapacityEstimate
    people: PresenceState
    in_force: Promised
    promised: Mapping[str, Promises]
    kept_bits_per_s: Mapping[str, int]


def booked(
    read: Reading, *, state: InterfaceState, sample: InterfaceSample | None, flows: Sequence[FlowSample],
    interface: InterfacePolicy, policy: Policy, hours: Sequence[ActiveSchedule],
) -> Booked:  # fmt: skip
    """Book a reading at its own time.

    Args:
        read: the reading.
        state: as the reading before it left it.
        sample: what the reading is of; None where the interface is not there.
        flows: its connections, without those that another broker holds.
        interface, policy: as the decision has them.
        hours: the schedules that hold.
    """
    estimate = estimator.estimate(
        now_s=read.now_s,
        state=state.capacity,
        base=estimator.base_rate(interface, sample),
        flows=flows,
        counters=read.counters(),
    )
    people = PresenceState()
    if policy.presence.enabled:
        seen = read.samples.get(call_detector.PEOPLE)
        people = call_detector.follow(state.presence, seen, read_s=read.read_s, now_s=read.now_s)
    rate = estimate.rate_bits_per_s
    now = in_force(policy, hours, people, capacity_bits_per_s=rate)
    promised = promises_of(now.classes, rate)
    return Booked(estimate, people, now, promised, overcommit.kept(promised, rate))
