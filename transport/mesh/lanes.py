"""When to send to a peer over one connection more, and when over one less: the law. No clock, no I/O.

A connection is driven by one thread. Where that thread is what limits a transfer, a second connection over a second
socket, served by a second thread, carries more; everywhere else it only takes from whoever shares the link, because a
link divides itself by connections. So a lane, as a connection is called here, has to prove itself:

- One more is opened when for `windows` windows in a row there was work for it all along, the threads of all lanes in
  use were busy for `busy_share_min` of a core, and nothing showed that the network limits (`Window.limited`).
- It is on trial then: it stays when what was delivered in `windows` further windows is at least `gain_min` more than in
  those before. A trial that cannot be judged, because work ended or the network began to limit, has failed.
- A kept lane is given up when the network limits for `windows` windows in a row: somebody else wants the link.
- After each lane that was given up so, or that could not be had, none is tried for a time that doubles: within an hour
  at most seven that were not worth it.
- After `idle_s` without work one lane is left, and the next one has to prove itself anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LaneLaw:
    """The constants, and where they come from.

    Args:
        lanes_max: of one peer, the first one counted; 1 turns further ones off.
        window_s: of one measurement. Engines renew theirs every 100 ms: a tenth is the error of a window, and a
            thirtieth that of three.
        windows: measurements in a row that decide. One is a whim of the scheduler.
        busy_share_min: of a core. A thread that waits for the network, or for the peer, is below it.
        gain_min: more than the noise of a shared machine, which is about a tenth.
        trial_windows_max: of a trial, until it is given up as one that cannot be judged.
        loss_share_max: of packets; more is congestion. A reordered packet may pass for a lost one.
        delay_s_max: of the shortest round trip in a window above the least; more is a queue that stands.
        window_full_share: of the congestion window in flight; more means that the window limits.
        retry_s_first, retry_s_max: how long none is tried after the first one that was not worth it; doubles.
        idle_s: how long a lane may be idle.
        lane_bytes_min: smaller messages stay on the first lane.
    """

    lanes_max: int = 4
    window_s: float = 1.0
    windows: int = 3
    busy_share_min: float = 0.9
    gain_min: float = 0.15
    trial_windows_max: int = 10
    loss_share_max: float = 1e-4
    delay_s_max: float = 0.005
    window_full_share: float = 0.75
    retry_s_first: float = 30.0
    retry_s_max: float = 3600.0
    idle_s: float = 10.0
    lane_bytes_min: int = 64 * 1024


@dataclass(frozen=True)
class Window:
    """What was measured of one peer in one window.

    Args:
        delivered_bytes_per_s: acknowledged, over all lanes.
        work: whether more messages than there are lanes were under way or waiting, whenever it was looked.
        idle: whether there was none, whenever it was looked.
        busy_share: of a core, of the least busy thread of a lane in use.
        limited: what shows that the network limits, in words; "" for nothing.
    """

    delivered_bytes_per_s: float
    work: bool
    idle: bool
    busy_share: float
    limited: str = ""


@dataclass(frozen=True)
class LaneState:
    """What the law knows of one peer.

    Args:
        lanes: how many to send over.
        rates: bytes per second of the windows in a row that count for the question that is open.
        base: bytes per second before the lane on trial; None without a trial.
        trial_windows: how long the trial has lasted.
        limited_windows: in a row.
        idle_windows: in a row.
        retry_s: how long to wait after the next one that is not worth it; 0 for `retry_s_first`.
        not_before_s: none is tried before.
    """

    lanes: int = 1
    rates: tuple[float, ...] = ()
    base: float | None = None
    trial_windows: int = 0
    limited_windows: int = 0
    idle_windows: int = 0
    retry_s: float = 0.0
    not_before_s: float = -math.inf


@dataclass(frozen=True)
class LaneDecision:
    """What to do now, and why, in words; "" where nothing changes."""

    state: LaneState
    reason: str = ""


def decide_lanes(now_s: float, state: LaneState, window: Window, law: LaneLaw) -> LaneDecision:
    """Take one more measurement of a peer into account.

    Args:
        now_s: a monotonic clock.
        window: not one during which a lane was being opened.
    """
    idle_windows = state.idle_windows + 1 if window.idle else 0
    limited_windows = state.limited_windows + 1 if window.limited else 0
    state = replace(state, idle_windows=idle_windows, limited_windows=limited_windows)
    if state.lanes > 1 and idle_windows * law.window_s >= law.idle_s:
        return LaneDecision(first_alone(state), f"nothing was sent for {law.idle_s:g} s")
    if state.base is not None:
        return _judge(now_s, state, state.base, window, law)
    if state.lanes > 1 and limited_windows >= law.windows:
        return LaneDecision(_one_less(now_s, state, law), f"the network limits: {window.limited}")
    if not window.work or window.limited or window.busy_share < law.busy_share_min:
        return LaneDecision(replace(state, rates=()))
    state = replace(state, rates=(*state.rates, window.delivered_bytes_per_s)[-law.windows :])
    if len(state.rates) < law.windows or state.lanes >= law.lanes_max or now_s < state.not_before_s:
        return LaneDecision(state)
    base = sum(state.rates) / law.windows
    more = replace(state, lanes=state.lanes + 1, rates=(), base=base, trial_windows=0)
    share = f"{window.busy_share:.2f} of a core drive {_rate(base)}"
    return LaneDecision(more, f"{share}, and neither the network nor the work limits: one more on trial")


def could_not_open(now_s: float, state: LaneState, why: str, law: LaneLaw) -> LaneDecision:
    """The last lane did not come up, or was lost."""
    return LaneDecision(_one_less(now_s, state, law), why)


def first_alone(state: LaneState) -> LaneState:
    """One lane is left, and the next one has to prove itself anew; not before it could have been tried so far."""
    return LaneState(retry_s=state.retry_s, not_before_s=state.not_before_s)


def _judge(now_s: float, state: LaneState, base: float, window: Window, law: LaneLaw) -> LaneDecision:
    """The trial's next window. The first one does not count: the new connection is finding its pace."""
    state = replace(state, trial_windows=state.trial_windows + 1)
    if window.limited:
        return LaneDecision(_one_less(now_s, state, law), f"not worth it, the network limits: {window.limited}")
    if window.work and state.trial_windows > 1:
        state = replace(state, rates=(*state.rates, window.delivered_bytes_per_s))
    if len(state.rates) == law.windows:
        rate = sum(state.rates) / law.windows
        gain = f"{_rate(rate)} instead of {_rate(base)}"
        if rate >= base * (1 + law.gain_min):
            return LaneDecision(replace(state, base=None, rates=()), f"worth it: {gain}")
        return LaneDecision(_one_less(now_s, state, law), f"not worth it: {gain}")
    if state.trial_windows >= law.trial_windows_max:
        return LaneDecision(_one_less(now_s, state, law), "not worth it: there was not work enough to judge")
    return LaneDecision(state)


def _one_less(now_s: float, state: LaneState, law: LaneLaw) -> LaneState:
    retry_s = state.retry_s or law.retry_s_first
    return LaneState(
        lanes=max(state.lanes - 1, 1), retry_s=min(2 * retry_s, law.retry_s_max), not_before_s=now_s + retry_s
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-6:.0f} Mbit/s"
