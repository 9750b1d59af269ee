"""Detect unannounced bursts of training by what training sends from this host.

In an all_reduce every rank sends while it receives. So class compute's own counter shows when training comes in. The
inbound counter cannot show it: storage and training look alike until storage is counted.

    begins  training sends 0.3 of the slower of both directions
    ends    it has sent less than half of that for 50 ms

Ten ticks a second would find a burst of 0.2 s when it is half over. So while storage comes in as well, the decision
asks to be called when the send rate crosses those rates (`Watch`). The daemon then reads two counters fifty times a
second, and finds such a burst 15 ms after it began. It was not announced, so storage keeps its guarantee in it
(`broker.law.holds.request`), not only its floor.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.inbound_state import ObservedState
from broker.model.values import Burst, InterfaceSample, Watch

USER, JOB = -1, ""
"""The user of these bursts: a number that no user has."""
BEGINS, ENDS = 0.3, 0.15
"""The part of the slower direction that a burst uses: the least that holds announced bursts. Half of it is a pause."""
QUIET_S = 0.05
"""A rank of a ring waits for others at times; the transport also ends a burst after 50 ms."""
SIZE_BYTES = 1_000_000
"""The nominal announcement of such a burst: its received bytes are learned as a ratio to it
(`broker.law.bursts.inbound`)."""
TRAINS = 0.05
"""The part of the slower direction below which training needs no hold."""
WINDOW_S_MIN = 0.015
"""The shortest time for a rate: over less, counters show single segments (64 KiB are 5 ms at 100 Mbit/s)."""
MOSTLY = 0.5
"""The least part of the sent bytes for training to count: outbound storage shows nothing of inbound traffic."""


def follow(
    state: ObservedState, sample: InterfaceSample | None, *, slower_bits_per_s: int, announced_s: float | None,
    now_s: float,
) -> tuple[ObservedState, Burst | None]:  # fmt: skip
    """Add a tick's measurements.

    Args:
        state: of the last tick.
        sample: what was measured.
        slower_bits_per_s: of the slower of both directions.
        announced_s: when an announced burst last explained what training sends; it is not taken for another burst.
        now_s: the tick's time.

    Returns:
        The new state, and the burst in progress.
    """
    state = _count(state, sample, now_s=now_s)
    pace = state.sends_bits_per_s
    if sample is not None and sample.pace_bits_per_s is not None:
        pace = sample.pace_bits_per_s * state.part
    if is_announced(state, announced_s):
        return replace(state, began_s=None), None
    if pace >= TRAINS * slower_bits_per_s:
        state = replace(state, training_s=now_s)
    if state.began_s is None:
        if pace < BEGINS * slower_bits_per_s:
            return state, None
        state = replace(state, number=state.number + 1, began_s=now_s, sent_s=now_s)
    elif pace >= ENDS * slower_bits_per_s:
        state = replace(state, sent_s=now_s)
    elif now_s - state.sent_s >= QUIET_S:
        return replace(state, began_s=None), None
    return state, Burst(JOB, state.number, SIZE_BYTES, now_s - (state.began_s or now_s), 1.0, uid=USER)


def is_announced(state: ObservedState, announced_s: float | None) -> bool:
    """Whether an announced burst may explain part of what training sent since the previous reading."""
    return announced_s is not None and (state.since_s is None or state.since_s <= announced_s)


def quiet_in_s(state: ObservedState, *, now_s: float) -> float | None:
    """In how many seconds the burst in progress ends, if nothing more is sent; None while it sends, or without one."""
    if state.began_s is None or state.sent_s >= now_s:
        return None
    return max(0.001, state.sent_s + QUIET_S - now_s)


def watch(interface: str, state: ObservedState, *, slower_bits_per_s: int) -> Watch:
    """The crossing of a rate at which to decide again."""
    if state.began_s is None:
        return Watch(interface, int(BEGINS * slower_bits_per_s), rising=True)
    return Watch(interface, int(ENDS * slower_bits_per_s), rising=False)


def _count(state: ObservedState, sample: InterfaceSample | None, *, now_s: float) -> ObservedState:
    """The rate that training sent at since the last counters, and its part of all sent bytes."""
    if sample is None or sample.counters_age_s is None or not sample.classes:
        return replace(state, since_s=None, counted_s=None, sends_bits_per_s=0.0, part=0.0)
    read_s = now_s - sample.counters_age_s
    ours = sum(entry.sent_bytes for entry in sample.classes if entry.name == "compute")
    every = sum(entry.sent_bytes for entry in sample.classes)
    after = replace(state, since_s=state.counted_s, counted_s=read_s, ours_bytes=ours, every_bytes=every)
    if state.counted_s is None or ours < state.ours_bytes or every < state.every_bytes:
        return replace(after, sends_bits_per_s=0.0, part=0.0)
    elapsed_s = read_s - state.counted_s
    if elapsed_s < WINDOW_S_MIN:
        return state
    more, more_ours = every - state.every_bytes, ours - state.ours_bytes
    part = more_ours / more if more else 0.0
    return replace(after, sends_bits_per_s=8 * more_ours / elapsed_s, part=part if part >= MOSTLY else 0.0)
