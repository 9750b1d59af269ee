"""Whatever is measured, of every kind and in any order: it is decided without an error, and a recording of it replays.

The values are made from the types of the measurements themselves, so that a field that comes is tried as well.
"""

from __future__ import annotations

import enum
import random
import types
import typing
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.state import State
from broker.model.values import Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

POLICY = load(
    """
version = 1
[[interface]]
name = "a"
egress = "40 Mbit/s"
ingress = "60 Mbit/s"
[[interface]]
name = "b"
ingress = "auto"
[class.compute]
guarantee = "20 Mbit/s"
[job.J]
guarantee = "40 %"
weight = 2
[[schedule]]
name = "night"
from = "22:00"
to = "06:00"
timezone = "UTC"
[schedule.class.storage]
ceiling = "50 %"
"""
)
ADDRESSES = ("10.0.0.2", "10.0.0.3", "fd00::4", "not an address")
TEXTS: dict[str, tuple[str, ...]] = {
    "name": ("a", "b", "night", "stranger"),
    "traffic_class": (*CLASS_NAMES, "unknown"),
    "job": ("J", "K", "", "\x1b[2J", "\u202e" * 40),
    "peer": ADDRESSES,
    "address": ADDRESSES,
    "source": ("report", "tcp-info", "probe", "unknown"),
    "session": ("s-1", "s-2"),
    "key": ("f-1", "f-2", "way/10.0.0.2", "probe/10.0.0.3"),
    "run": ("r",),
}
COUNTS = (0, 1, 2, 1000, 1_500_000, 40_000_000, 2**31, 2**32 - 1, 2**32, 2**50)
SECONDS = (0.0, 0.001, 0.02, 0.05, 0.3, 1.0, 40.0)
SIGNED = ("remaining_s", "one_way_s", "inbound_s")
LISTS_MAX = 4
TICKS = 30


class Kernel:
    """Says anything of any type, as the daemon may have it: no count and no age is negative, else all is possible."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def any_of(self, kind: Any, *, name: str = "") -> Any:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        chance = self._chance
        if origin in (typing.Union, types.UnionType):
            (inner,) = [argument for argument in arguments if argument is not type(None)]
            return None if chance.random() < 0.2 else self.any_of(inner, name=name)
        if origin is tuple and arguments[-1] is Ellipsis:
            many = [self.any_of(arguments[0], name=name) for _ in range(chance.randint(0, LISTS_MAX))]
            return tuple({identity(one): one for one in many}.values())
        if origin is tuple:
            return tuple(self.any_of(argument, name=name) for argument in arguments)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            hints = typing.get_type_hints(kind)
            return kind(
                **{
                    field.name: self.any_of(hints[field.name], name=f"{kind.__name__}.{field.name}")
                    for field in msgspec.structs.fields(kind)
                }
            )
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return chance.choice(list(kind))
        owner, _, field_name = name.partition(".")
        if kind is bool:
            return chance.random() < 0.5
        if kind is int:
            return chance.choice((chance.choice(COUNTS), chance.randint(0, 10**8)))
        if kind is float:
            sign = -1 if field_name in SIGNED and chance.random() < 0.3 else 1
            return sign * chance.choice((chance.choice(SECONDS), chance.random()))
        return chance.choice(CLASS_NAMES if owner == "ClassSample" else TEXTS.get(field_name, ("text",)))

    def waits_s(self) -> float:
        return self._chance.choice((0.005, 0.02, 0.1, 0.1, 0.1, 0.4, 3.0))


def identity(value: Any) -> Any:
    """By what the daemon tells two of a kind apart."""
    keys = (("uid", "job", "step"), ("job", "traffic_class"), ("address", "traffic_class"), ("key",), ("session",))
    for names in keys:
        if all(hasattr(value, name) for name in names):
            return tuple(getattr(value, name) for name in names)
    return getattr(value, "name", value)


def seeds(usual: int, *, more: int) -> list[object]:
    """The first ones, and those that `make test-long` tries."""
    return [*range(usual), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(usual, usual + more))]


@pytest.mark.parametrize("seed", seeds(15, more=25))
def test_whatever_is_measured_is_decided_and_replays_to_the_same_bytes(seed: int) -> None:
    kernel, state, now_s = Kernel(seed), State(), 0.0
    lines = [header_line(policy=POLICY, state=state)]
    for tick in range(TICKS):
        now_s += kernel.waits_s()
        measurements = kernel.any_of(Measurements)
        decision = decide(now_s=now_s, state=state, measurements=measurements, policy=POLICY)
        promises_hold(decision)
        lines.append(tick_line(now_s=now_s, measurements=measurements, decision=decision))
        if tick == TICKS // 2:  # a new file begins, with all that is remembered
            lines.append(header_line(policy=POLICY, state=decision.state))
        state = decision.state
    found = replay(lines)
    assert (found.first_difference, found.ticks) == (None, TICKS)


@pytest.mark.parametrize("seed", seeds(5, more=5))
def test_no_decision_depends_on_how_a_python_adds_floats_up(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sum` rounds floats otherwise from Python 3.12 on; a recording made under 3.11 has to replay under all."""

    def of_integers(values: Iterable[int], start: int = 0) -> int:
        for value in values:
            assert not isinstance(value, float), "add floats up with math.fsum"
            start += value
        return start

    kernel, state, now_s = Kernel(seed), State(), 0.0
    for _ in range(TICKS):
        now_s += kernel.waits_s()
        measurements = kernel.any_of(Measurements)
        with monkeypatch.context() as patched:
            patched.setattr("builtins.sum", of_integers)
            state = decide(now_s=now_s, state=state, measurements=measurements, policy=POLICY).state


def promises_hold(decision: Decision) -> None:
    """What holds of every decision, whatever it was made from."""
    for entry in (*decision.allocation.interfaces, *decision.allocation.ingress):
        opened = entry.open_bits_per_s or entry.capacity_bits_per_s
        most = {one.name: opened if one.name == "other" else entry.capacity_bits_per_s for one in entry.classes}
        assert sum(one.rate_bits_per_s for one in entry.classes) <= opened
        held = (one.rate_bits_per_s for one in entry.classes if most[one.name] == entry.capacity_bits_per_s)
        assert sum(held) <= entry.capacity_bits_per_s <= opened
        fits = sum(one.floor_bits_per_s for one in entry.classes) <= entry.capacity_bits_per_s
        for one in entry.classes:
            assert one.rate_bits_per_s >= one.floor_bits_per_s or not fits or entry.direction == "ingress"
            assert 0 <= one.rate_bits_per_s <= one.ceil_bits_per_s <= most[one.name]
        reasons = [entry.capacity_reason, *(one.reason for one in entry.classes), *(one.reason for one in entry.jobs)]
        reasons += [*(one.reason for one in entry.destinations)]
        assert all(reason.code and reason.text for reason in reasons)
        if entry.direction == "egress":
            assert entry.segments is not None
            assert entry.segments.reason.text
            assert entry.segments.gso_max_segs is None or 1 <= entry.segments.gso_max_segs <= 65_536
    assert all(alarm.code and alarm.text for alarm in decision.alarms)
    assert all(hold.rate_bits_per_s > 0 and 0 < hold.lease_s <= 2 for hold in decision.holds)
    assert all(credit.reason is not None and credit.reason.text for credit in decision.credits)
    assert all(verdict.reason.code and verdict.reason.text for verdict in decision.verdicts)
