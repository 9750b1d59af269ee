"""Whether what storage has to send will be there in time: by the pace at which it really gets less.

pace       how fast a backlog shrinks, averaged over two minutes: longer than storage lends to bursts. It knows what
           no share tells: a slow disk, a slow receiver, new data. It is known after a minute.
at risk    from the moment at which the backlog, at its pace, ends 5 % after its deadline; until it ends 5 % before.
before     a minute has passed, the rate that is needed is compared with storage's share at present demand.
raised     storage is promised what its deadlines need, out of what nobody is promised, up to its ceiling. The rate
           counts a tenth higher than it is, so that the end moves away from the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from broker.law.sharing.promises import LENDER, Promises
from broker.law.sharing.storage_needs import needed_bits_per_s
from broker.law.state import DeadlineState
from broker.model.values import Alarm, Need
from hive_qos.units import format_rate, format_size

SAMPLE_S = 10.0
"""Adapters read a backlog this often."""
KNOWN_S = 60.0
"""Storage's promise holds over a minute, so a pace of less says nothing."""
AVERAGED_S = 120.0
"""Twice that: bursts of training and readings between two steps of a backlog even out."""
LATE, EARLY = 1.05, 0.95
"""The projected end against the deadline: between these two what was said stays."""
HEADROOM = 1.1
"""The rate that is raised to, over that which is needed."""
STEPS = 20
"""Storage's promise is raised by twentieths of the capacity: what is needed falls by the second, and each change of a
promise is one in the kernel."""


def follow(states: Sequence[DeadlineState], needs: Sequence[Need], *, now_s: float) -> tuple[DeadlineState, ...]:
    """Take in what is left at a tick.

    Args:
        states: from the last tick.
        needs: with a deadline ahead.
        now_s: the tick's time.
    """
    known = {state.session: state for state in states}
    return tuple(_followed(known.get(need.session), need, now_s) for need in needs)


def pace_bits_per_s(state: DeadlineState) -> int | None:
    """How fast a backlog shrinks, 0 where it does not; None while that is not known."""
    return max(0, int(state.pace_bits_per_s)) if state.counted_s - state.began_s >= KNOWN_S else None


def projected_s(state: DeadlineState, backlog_bytes: int) -> float | None:
    """Seconds until it is done at its pace; None where that is not known, or it will never be."""
    pace = pace_bits_per_s(state)
    return backlog_bytes * 8 / pace if pace else None


def raised(
    promised: Mapping[str, Promises], *, needed_bits_per_s: int, capacity_bits_per_s: int
) -> Mapping[str, Promises]:
    """The promises with storage's raised to what its deadlines need, within what policy leaves."""
    own = promised[LENDER]
    spare = capacity_bits_per_s - sum(other.guarantee for name, other in promised.items() if name != LENDER)
    step = max(1, capacity_bits_per_s // STEPS)
    wanted = math.ceil(HEADROOM * needed_bits_per_s / step) * step
    guarantee = min(wanted, spare, own.ceiling)
    if guarantee <= own.guarantee:
        return promised
    return {**promised, LENDER: replace(own, guarantee=guarantee)}


def alarm(
    name: str, states: Sequence[DeadlineState], needs: Sequence[Need], *, all_bits_per_s: int, share_bits_per_s: int
) -> Alarm | None:
    """Say that not all will be there in time.

    Args:
        name: of the interface.
        states, needs: of `follow`.
        all_bits_per_s: for all deadlines. share_bits_per_s: what storage gets at present demand.
    """
    known = {state.session: state for state in states}
    for need in needs:
        state = known[need.session]
        if state.at_risk and need.remaining_s is not None:
            end_s, pace = projected_s(state, need.backlog_bytes), format_rate(state.pace_bits_per_s)
            when = "it does not get less" if end_s is None else f"at its pace of {pace} it is done in {span(end_s)}"
            needs_text = format_rate(needed_bits_per_s(need))
            text = f"{_due(need.backlog_bytes, need.remaining_s)}: that needs {needs_text}, and {when}"
            return Alarm("deadline-at-risk", f"{name}/{LENDER}", text)
    unknown = any(pace_bits_per_s(state) is None for state in states)
    if not unknown or all_bits_per_s <= share_bits_per_s:
        return None
    backlog_bytes = sum(need.backlog_bytes for need in needs)
    text = (
        f"{_due(backlog_bytes, min(need.remaining_s or 0.0 for need in needs))}: that needs "
        f"{format_rate(all_bits_per_s)}, and {format_rate(share_bits_per_s)} are its part at present demand"
    )
    return Alarm("deadline-at-risk", f"{name}/{LENDER}", text)


def span(seconds: float) -> str:
    """A time that is left, in the unit that people would take."""
    for unit, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def _followed(state: DeadlineState | None, need: Need, now_s: float) -> DeadlineState:
    if state is None:
        return DeadlineState(need.session, began_s=now_s, counted_s=now_s, counted_bytes=need.backlog_bytes)
    elapsed_s = now_s - state.counted_s
    if elapsed_s >= SAMPLE_S:
        rate = (state.counted_bytes - need.backlog_bytes) * 8 / elapsed_s
        rate = max(rate, -state.pace_bits_per_s)  # new data takes back a sample
        part = elapsed_s / min(now_s - state.began_s, max(AVERAGED_S, elapsed_s))
        pace = state.pace_bits_per_s + part * (rate - state.pace_bits_per_s)
        state = replace(state, counted_s=now_s, counted_bytes=need.backlog_bytes, pace_bits_per_s=pace)
    if pace_bits_per_s(state) is None or need.remaining_s is None:
        return state
    end_s = projected_s(state, need.backlog_bytes)
    limit = EARLY if state.at_risk else LATE
    return replace(state, at_risk=end_s is None or end_s > limit * need.remaining_s)


def _due(backlog_bytes: int, remaining_s: float) -> str:
    return f"storage has {format_size(backlog_bytes)} to send, due in {span(remaining_s)}"
