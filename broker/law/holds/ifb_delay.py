"""Estimate each class' queueing delay in our IFB, so that it is not attributed to the network.

    wait = backlog / rate at which the class leaves the IFB

As outbound (`broker.law.capacity.flow_delay`), a packet joined that queue some time before its report, so the longest
wait of the last `LOOK_BACK_S` counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from broker.law.inbound_state import IfbDelayState
from broker.model.values import ClassSample

LOOK_BACK_S = 0.3
"""A round trip of a queue of 200 ms, and a tick."""
APART_S_MIN = 0.05
"""Two readings closer than this give no rate: the IFB releases 64 KiB at once."""
WAIT_S_MAX = 10.0
PACKET_BYTES = 3_000
"""A backlog of two packets is no queue."""


def follow(
    states: Sequence[IfbDelayState], samples: Sequence[ClassSample] | None, *, now_s: float
) -> tuple[IfbDelayState, ...]:
    """Add a tick's counters of the IFB; empty where there is no IFB, and then nothing waits there.

    Where they were not read (None), the last state counts for `LOOK_BACK_S`.
    """
    if samples is None:
        return tuple(state for state in states if now_s - state.read_s <= LOOK_BACK_S)
    known = {state.traffic_class: state for state in states}
    return tuple(_followed(known.get(sample.name), sample, now_s=now_s) for sample in samples)


def waits_s(states: Sequence[IfbDelayState], *, now_s: float) -> dict[str, float]:
    """Class to the longest recent wait of its packets here."""
    return {
        state.traffic_class: max((wait_s for at_s, wait_s in state.waits if at_s >= now_s - LOOK_BACK_S), default=0.0)
        for state in states
    }


def wait_s(states: Sequence[IfbDelayState], traffic_class: str) -> float:
    """How long a class' packets that arrive now wait here; 0 where there are none."""
    return next((state.waits[-1][1] for state in states if state.traffic_class == traffic_class and state.waits), 0.0)


def _followed(before: IfbDelayState | None, sample: ClassSample, *, now_s: float) -> IfbDelayState:
    if before is None or sample.sent_bytes < before.sent_bytes:
        return IfbDelayState(sample.name, now_s, sample.sent_bytes)
    state, elapsed_s = before, now_s - before.read_s
    if elapsed_s >= APART_S_MIN:
        rate = 8 * (sample.sent_bytes - before.sent_bytes) / elapsed_s
        state = replace(before, read_s=now_s, sent_bytes=sample.sent_bytes, rate_bits_per_s=rate)
    waits_s = 0.0
    if sample.backlog_bytes >= PACKET_BYTES:
        waits_s = min(WAIT_S_MAX, 8 * sample.backlog_bytes / max(1.0, state.rate_bits_per_s))
    lately = (entry for entry in before.waits if entry[0] > now_s - LOOK_BACK_S)
    return replace(state, waits=(*lately, (now_s, waits_s)))
