"""What makes the daemon decide ten times a second."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import is_active
from broker.law.state import State
from broker.model.leases import Lease
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements, Need
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

POLICY = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')
QUIET = tuple(ClassSample(name, 0) for name in CLASS_NAMES)


def after(sample: InterfaceSample, *, ticks: int = 3) -> bool:
    state = State()
    for tick in range(1, ticks + 1):
        measured = Measurements((sample,))
        decision = decide(now_s=tick / 10, state=state, measurements=measured, policy=POLICY)
        state = decision.state
    return is_active(decision, measured)


def test_a_host_on_which_nobody_sends_is_idle() -> None:
    assert not after(InterfaceSample("a", None, 0.0, QUIET))


@pytest.mark.parametrize(
    "more",
    [
        {"classes": (*QUIET[:2], ClassSample("storage", 0, backlog_bytes=100_000), QUIET[3])},
        {"bursts": (Burst("J", 1, 4_000_000, 0.0, 1.0),)},
        {"needs": (Need("s-1", 0, 10**9, 0.0),)},
        {"leases": (Lease("peer", "10.0.0.2", 1, "storage", 1_000_000, 10_000_000, 0.0, 1.0),)},
    ],
)
def test_whoever_waits_announces_needs_or_asks_is_followed(more: dict[str, object]) -> None:
    assert after(replace(InterfaceSample("a", None, 0.0, QUIET), **more))


def test_who_sends_is_followed_until_his_rate_is_known_to_be_none() -> None:
    state, active = State(), []
    for tick in range(1, 60):
        sent = min(tick, 20) * 100_000
        classes = (*QUIET[:3], ClassSample("other", sent))
        measured = Measurements((InterfaceSample("a", None, 0.0, classes),))
        decision = decide(now_s=tick / 10, state=state, measurements=measured, policy=POLICY)
        state = decision.state
        active.append(is_active(decision, measured))
    assert all(active[1:20])
    assert not active[-1]
