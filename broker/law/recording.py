"""Recorded decisions: one JSON line each, and a replay that decides them again.

A recording is text: a header line with the policy and the state it starts from, then one line a decision. A decision is
a function of these alone, so a replay needs nothing else. It rebuilds the state between ticks, which is not written. A
new header may come at any place (a new file, a new policy), and starts from the state that it contains.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.leases import Hold, HoldOutcome
from broker.model.values import Alarm, Allocation, Credit, Measurements, Watch
from broker.policy.types import Policy

RECORD_VERSION = 1
"""The format's version: it changes when an older recording can no longer be replayed."""


class _Version(Struct, frozen=True):
    record: int


class _Header(Struct, frozen=True):
    record: int
    policy: Policy
    state: State


class _Tick(Struct, frozen=True):
    now_s: float
    measurements: Measurements
    allocation: Allocation
    credits: tuple[Credit, ...]
    alarms: tuple[Alarm, ...]
    holds: tuple[Hold, ...] = ()
    verdicts: tuple[HoldOutcome, ...] = ()
    again_s: float | None = None
    watches: tuple[Watch, ...] = ()


class Replay(Struct, frozen=True):
    """The result of a replay: the number of decisions, and the first line (from 1) whose decision differed."""

    ticks: int
    first_difference: int | None


def header_line(*, policy: Policy, state: State) -> str:
    """Start a recording: policy and state from which the following lines were decided.

    Write it at the start of every file and after every change of policy.
    """
    return msgspec.json.encode(_Header(record=RECORD_VERSION, policy=policy, state=state)).decode()


def tick_line(*, now_s: float, measurements: Measurements, decision: Decision) -> str:
    """Record one decision with all that went into it, as one line without its newline."""
    return msgspec.json.encode(_tick(now_s=now_s, measurements=measurements, decision=decision)).decode()


def replay(lines: Iterable[str]) -> Replay:
    """Decide again what a recording decided, and compare each decision as a whole.

    Raises:
        ValueError: not a recording, one of another version, or one without a decision; names the line.
    """
    policy: Policy | None = None
    state = State()
    ticks = 0
    for number, line in enumerate(lines, start=1):
        try:
            if line.startswith(_HEADER_BEGINS):
                header = _read_header(line)
                policy, state = header.policy, header.state
                continue
            tick = msgspec.json.decode(line, type=_Tick)
            if policy is None:
                raise ValueError("the recording does not start with its header")
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
        decision = decide(now_s=tick.now_s, state=state, measurements=tick.measurements, policy=policy)
        state = decision.state
        ticks += 1
        if _tick(now_s=tick.now_s, measurements=tick.measurements, decision=decision) != tick:
            return Replay(ticks=ticks, first_difference=number)
    if not ticks:
        raise ValueError("there is no decision in it")
    return Replay(ticks=ticks, first_difference=None)


_HEADER_BEGINS = '{"record":'
"""Struct fields are written in the order of their declaration."""


def _read_header(line: str) -> _Header:
    found = msgspec.json.decode(line, type=_Version).record
    if found != RECORD_VERSION:
        raise ValueError(f"a recording of version {found}; this program replays {RECORD_VERSION}")
    return msgspec.json.decode(line, type=_Header)


def _tick(*, now_s: float, measurements: Measurements, decision: Decision) -> _Tick:
    return _Tick(
        now_s=now_s,
        measurements=measurements,
        allocation=decision.allocation,
        credits=decision.credits,
        alarms=decision.alarms,
        holds=decision.holds,
        verdicts=decision.verdicts,
        again_s=decision.again_s,
        watches=decision.watches,
    )
