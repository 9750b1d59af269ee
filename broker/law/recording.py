"""Recorded decisions: one JSON line each, and a replay that gives the same bytes.

A recording is text: a header line with the policy and the state it starts from, then one line a decision. A decision is
a function of these alone, so that a replay needs nothing else; the memory between ticks is rebuilt on the way and is
not written. A new header may come at any place (a new file, a new policy) and starts from the state that stands in it.

Versions write more and more keys, and say their reasons in better words. A line of an earlier one is compared by the
keys that it has, with their very bytes, and its reasons by their codes: whether this version decides the same is what
one wants to know of it, not that it now says more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.codec import dumps, from_json
from broker.model.leases import Hold, HoldOutcome, PreparedHolds
from broker.model.values import Alarm, Allocation, Credit, Measurements, Watch
from broker.policy.types import Policy

RECORD_VERSION = 1
"""Another one when old recordings could not be read any more; keys that come have defaults."""


@dataclass(frozen=True)
class _Header:
    record: int
    policy: Policy
    state: State


@dataclass(frozen=True)
class _Tick:
    now_s: float
    measurements: Measurements
    allocation: Allocation
    credits: tuple[Credit, ...]
    alarms: tuple[Alarm, ...]
    holds: tuple[Hold, ...] = ()
    verdicts: tuple[HoldOutcome, ...] = ()
    again_s: float | None = None
    watches: tuple[Watch, ...] = ()
    ready: tuple[PreparedHolds, ...] = ()


@dataclass(frozen=True)
class Replay:
    """What a replay found: decisions replayed, and the number (from 1) of the first line that came out otherwise.

    `earlier` of the decisions lack keys that are written today: an earlier version recorded them, and they were
    compared by the keys that they have.
    """

    ticks: int
    first_difference: int | None
    earlier: int = 0


def header_line(*, policy: Policy, state: State) -> str:
    """Start a recording: policy and state from which the following lines were decided.

    Write it at the start of every file and after every change of policy.
    """
    return dumps(_Header(record=RECORD_VERSION, policy=policy, state=state))


def tick_line(*, now_s: float, measurements: Measurements, decision: Decision) -> str:
    """Record one decision with all that went into it, as one line without its newline."""
    return dumps(
        _Tick(
            now_s=now_s,
            measurements=measurements,
            allocation=decision.allocation,
            credits=decision.credits,
            alarms=decision.alarms,
            holds=decision.holds,
            verdicts=decision.verdicts,
            again_s=decision.again_s,
            watches=decision.watches,
            ready=decision.ready,
        )
    )


def replay(lines: Iterable[str]) -> Replay:
    """Decide again what a recording decided and compare the bytes; of an earlier version those of the keys it wrote.

    Raises:
        ValueError: not a recording, or one without a decision; names the line.
    """
    header: _Header | None = None
    state = State()
    ticks = earlier = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip("\n")
        try:
            data = json.loads(line)
            if isinstance(data, dict) and "record" in data:
                header = _read_header(data)
                state = header.state
                continue
            tick = from_json(_Tick, data)
            if header is None:
                raise ValueError("the recording does not start with its header")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
        decision = decide(now_s=tick.now_s, state=state, measurements=tick.measurements, policy=header.policy)
        state = decision.state
        ticks += 1
        again = tick_line(now_s=tick.now_s, measurements=tick.measurements, decision=decision)
        if again == line:
            continue
        whole = json.loads(again)
        known = _only_keys_of(data, whole)
        earlier += known != whole
        if dumps(known) != line:
            return Replay(ticks=ticks, first_difference=number, earlier=earlier)
    if not ticks:
        raise ValueError("there is no decision in it")
    return Replay(ticks=ticks, first_difference=None, earlier=earlier)


def _only_keys_of(recorded: Any, again: Any) -> Any:
    """What came out again, without the keys that the recording has not where it has the others, and with its words for
    a code."""
    if isinstance(recorded, dict) and isinstance(again, dict):
        said = {"text"} if "code" in recorded else set()
        return {
            name: recorded[name] if name in said else _only_keys_of(recorded[name], value)
            for name, value in again.items()
            if name in recorded
        }
    if isinstance(recorded, list) and isinstance(again, list) and len(recorded) == len(again):
        return [_only_keys_of(*both) for both in zip(recorded, again, strict=True)]
    return again


def _read_header(data: object) -> _Header:
    header = from_json(_Header, data)
    if header.record != RECORD_VERSION:
        raise ValueError(f"a recording of version {header.record}; this program replays {RECORD_VERSION}")
    return header
