"""What was found out about a link outlives that operator or driver name another speed for it.

A driver that says 1 Gbit/s after 100 Mbit/s, or says nothing for a while (Wi-Fi between two access points), has said
nothing of a bottleneck elsewhere: what was found there holds, as far as the new speed allows it, and probes go on from
there. Only where the speed rises, and what was found was the old one or nearly, the link itself was what limited: then
it is another link now, of which nothing is known.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.capacity.decrease import HOLD_S
from broker.law.capacity.inbound_state import InboundCapacityState
from broker.law.state import CapacityState

NEAR = 0.9
"""What came through a link that was the limit itself is found a tenth below its speed at most: a cut takes 5 to 10 %
off."""


def outbound(state: CapacityState | None, base_bits_per_s: int, *, now_s: float) -> CapacityState:
    """The way out's estimate from now on, whatever was known before (None: nothing)."""
    if state is not None and state.base_bits_per_s == base_bits_per_s:
        return state
    if state is None or _is_another_link(state, base_bits_per_s):
        return CapacityState(
            base_bits_per_s=base_bits_per_s, rate_bits_per_s=base_bits_per_s, changed_s=now_s, hold_s=HOLD_S
        )
    return replace(
        state,
        base_bits_per_s=base_bits_per_s,
        rate_bits_per_s=min(base_bits_per_s, state.rate_bits_per_s),
        rate_before_raise_bits_per_s=min(base_bits_per_s, state.rate_before_raise_bits_per_s),
        failed_bits_per_s=min(base_bits_per_s, state.failed_bits_per_s),
        episode_rate_bits_per_s=min(base_bits_per_s, state.episode_rate_bits_per_s),
        cut_from_bits_per_s=min(base_bits_per_s, state.cut_from_bits_per_s),
        surely_more_bits_per_s=min(base_bits_per_s, state.surely_more_bits_per_s),
        settled_bits_per_s=min(base_bits_per_s, state.settled_bits_per_s),
        cut_carried_bits_per_s=min(base_bits_per_s, state.cut_carried_bits_per_s),
    )


def inbound(state: InboundCapacityState | None, base_bits_per_s: int, *, now_s: float) -> InboundCapacityState:
    """The same of the way in."""
    if state is not None and state.base_bits_per_s == base_bits_per_s:
        return state
    if state is None or _is_another_link(state, base_bits_per_s):
        return InboundCapacityState(base_bits_per_s, base_bits_per_s, changed_s=now_s, heard_s=now_s)
    return replace(
        state,
        base_bits_per_s=base_bits_per_s,
        rate_bits_per_s=min(base_bits_per_s, state.rate_bits_per_s),
        settled_bits_per_s=min(base_bits_per_s, state.settled_bits_per_s),
        failed_bits_per_s=min(base_bits_per_s, state.failed_bits_per_s),
        episode_rate_bits_per_s=min(base_bits_per_s, state.episode_rate_bits_per_s),
    )


def _is_another_link(state: CapacityState | InboundCapacityState, base_bits_per_s: int) -> bool:
    rises = base_bits_per_s > state.base_bits_per_s
    return rises and state.rate_bits_per_s >= NEAR * state.base_bits_per_s
