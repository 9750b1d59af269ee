"""Bursts of training that nobody announced, seen by what training sends from here.

In an all_reduce everybody sends while everybody receives. So class compute's own counter says when training comes in.
What comes in cannot say it: storage and training look alike until somebody has counted storage.

    begins  training sends 0.3 of the slower of both directions
    ends    it has sent less than half of that for 50 ms

Ten ticks a second would find a burst of 0.2 s when it is half over. So while storage comes in as well, the decision
asks to be called when what leaves crosses those rates (`Watch`). The daemon then looks fifty times a second, at two
numbers, and finds such a burst 15 ms after it began. Nobody promised it anything: storage keeps its guarantee in it
(`broker.law.holds.request`), not just its floor.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.inbound_state import ObservedState
from broker.model.values import Burst, InterfaceSample, Watch

USER, JOB = -1, ""
"""Whose these bursts are: no user has this number."""
BEGINS, ENDS = 0.3, 0.15
"""Of the slower way: what announced bursts use at least while storage is held for them; half of that is a pause."""
QUIET_S = 0.05
"""A ring waits for its neighbours now and then; the transport takes 50 ms for the end of a burst, too."""
SIZE_BYTES = 1_000_000
"""What such a burst counts as having announced: what it brings is learned as a ratio to that
(`broker.law.bursts.inbound`)."""
TRAINS = 0.05
"""Of the slower way: who sends less than that trains nothing that would be felt."""
WINDOW_S_MIN = 0.015
"""Over less, class counters show the grain of segments: 64 KiB are 5 ms at 100 Mbit/s."""
MOSTLY = 0.5
"""Of what leaves, to be taken for training: storage that leaves says nothing of what comes in."""


def follow(
    state: ObservedState, sample: InterfaceSample | None, *, slower_bits_per_s: int, announced_s: float | None,
    now_s: float,
) -> tuple[ObservedState, Burst | None]:  # fmt: skip
    """Take in a tick.

    Args:
        state: so far.
        sample: what was measured.
        slower_bits_per_s: of the slower of both ways.
        announced_s: when what training sends was an announced burst's last; of that nothing is guessed.
        now_s: the tick's time.

    Returns:
        The new state, and the burst that is under way.
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
    """Whether what training sent since the reading before may be, in part, what was announced."""
    return announced_s is not None and (state.since_s is None or state.since_s <= announced_s)


def quiet_in_s(state: ObservedState, *, now_s: float) -> float | None:
    """In how many seconds the burst under way is over, if nothing more is sent; None where it still sends, or none is
    under way."""
    if state.began_s is None or state.sent_s >= now_s:
        return None
    return max(0.001, state.sent_s + QUIET_S - now_s)


def watch(interface: str, state: ObservedState, *, slower_bits_per_s: int) -> Watch:
    """The crossing to be called for."""
    if state.began_s is None:
        return Watch(interface, int(BEGINS * slower_bits_per_s), rising=True)
    return Watch(interface, int(ENDS * slower_bits_per_s), rising=False)


def _count(state: ObservedState, sample: InterfaceSample | None, *, now_s: float) -> ObservedState:
    """What training sent since the counters were last taken, and what part of all that left it was."""
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
