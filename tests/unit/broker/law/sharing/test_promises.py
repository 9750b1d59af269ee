"""What schedules that hold make of the classes."""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.sharing.promises import in_force
from broker.law.state import State
from broker.model.values import ClassSample, InterfaceSample, Measurements, ScheduleInForce, SchedulesNow
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, ClassOverride, ClassPolicy, Policy, SchedulePolicy, Share

POLICY = load("""
version = 1
[[interface]]
name = "a"
egress = "40 Mbit/s"
[[schedule]]
name = "office"
days = ["mon", "tue", "wed", "thu", "fri"]
from = "08:00"
to = "18:00"
timezone = "Europe/Berlin"
[schedule.class.storage]
ceiling = "20 %"
""")
CAPACITY = 38_800_000


def holding(*names: str) -> SchedulesNow:
    return SchedulesNow(tuple(ScheduleInForce(name, "UTC", "2026-11-20T18:00+01:00", 1) for name in names))


def step(state: State, schedules: SchedulesNow, *, tick: int, policy: Policy = POLICY) -> Decision:
    samples = tuple(ClassSample(name, 0, 100_000 if name == "storage" else 0) for name in CLASS_NAMES)
    measured = Measurements((InterfaceSample("a", counters_age_s=0.0, classes=samples),), schedules)
    return decide(now_s=tick / 10, state=state, measurements=measured, policy=policy)


def storage_of(decision: Decision) -> tuple[int, str]:
    entry = next(one for one in decision.allocation.interfaces[0].classes if one.name == "storage")
    return entry.ceil_bits_per_s, entry.reason.code


def test_storage_is_held_by_the_schedule_with_its_name_and_end_and_let_go_after_it() -> None:
    decision = step(State(), holding("office"), tick=1)
    assert storage_of(decision) == (CAPACITY // 5, "held-by-schedule")
    assert decision.allocation.schedules == holding("office").held
    text = next(one for one in decision.allocation.interfaces[0].classes if one.name == "storage").reason.text
    assert "office" in text
    assert "2026-11-20T18:00+01:00" in text
    decision = step(decision.state, holding(), tick=2)
    assert storage_of(decision)[0] == CAPACITY
    assert decision.allocation.schedules == ()


def test_a_schedule_that_the_policy_does_not_have_changes_nothing() -> None:
    assert storage_of(step(State(), holding("stranger"), tick=1))[0] == CAPACITY


def test_a_schedule_of_an_unknown_zone_does_not_hold_and_is_said() -> None:
    decision = step(State(), SchedulesNow(unknown=("office", "stranger")), tick=1)
    assert storage_of(decision)[0] == CAPACITY
    assert [(alarm.code, alarm.subject) for alarm in decision.alarms] == [("schedule-unknown", "office")]


def test_the_later_schedule_wins_key_by_key() -> None:
    every = SchedulePolicy("every", tuple(range(7)), 0, 86_400, "UTC", (ClassOverride("storage", ceiling=Share(0.2)),))
    weight = replace(every, name="weight", classes=(ClassOverride("storage", weight=5.0),))
    lower = replace(every, name="lower", classes=(ClassOverride("storage", ceiling=Share(0.1)),))
    assert (storage_by(every, weight).ceiling, storage_by(every, weight).weight) == (Share(0.2), 5.0)
    assert storage_by(every, lower).ceiling == Share(0.1)
    assert storage_by(lower, every).ceiling == Share(0.2)


def test_a_ceiling_below_a_promise_takes_the_promise_with_it() -> None:
    low = SchedulePolicy("low", tuple(range(7)), 0, 86_400, "UTC", (ClassOverride("storage", ceiling=Share(0.01)),))
    storage = storage_by(low)
    assert (storage.guarantee, storage.floor, storage.ceiling) == (Share(0.01), Share(0.01), Share(0.01))


def storage_by(*schedules: SchedulePolicy) -> ClassPolicy:
    """Storage while all of these hold, whatever order they are measured in."""
    policy, held = replace(POLICY, schedules=schedules), holding(*(one.name for one in reversed(schedules))).held
    classes = in_force(policy, held, capacity_bits_per_s=CAPACITY)[0]
    return next(one for one in classes if one.name == "storage")
