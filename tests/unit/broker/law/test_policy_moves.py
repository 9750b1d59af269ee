"""Another policy is in force at the next decision, however small: the dead band damps what is measured alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.enforce.shapes import shape_of
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.values import (
    ClassAllocation,
    ClassSample,
    InterfaceSample,
    JobSample,
    Measurements,
    ScheduleInForce,
    SchedulesNow,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, ClassPolicy, Policy, Share

TICK_S = 0.1
USER = 1000
FAST = 'version = 1\n[[interface]]\nname = "a"\negress = "{egress}"\n'
GIGABIT = FAST.format(egress="1 Gbit/s")


def seen(at_s: float, *, waiting: tuple[str, ...] = (), sent: dict[str, int] | None = None) -> InterfaceSample:
    """The counters at a time of classes that send as much a second, 1 Mbit where nothing is said of them."""
    rates = {name: (sent or {}).get(name, 1_000_000) for name in CLASS_NAMES}
    classes = tuple(ClassSample(name, int(rates[name] * at_s / 8), 10**6 * (name in waiting)) for name in CLASS_NAMES)
    job = JobSample("train", "compute", 0, 1, sends=True, leaf_sent_bytes=int(at_s * 1e6), uid=USER)
    return InterfaceSample("a", counters_age_s=0.0, classes=classes, received_bytes=0, jobs=(job,))


class Host:
    """The law, tick by tick, with whatever policy is in force."""

    def __init__(self) -> None:
        self.state, self.at_s = State(), 0.0

    def decide(
        self, policy: Policy, *, schedules: tuple[ScheduleInForce, ...] = (), ticks: int = 1, **sample: object
    ) -> Decision:
        for _ in range(ticks):
            self.at_s += TICK_S
            interface = seen(self.at_s, **sample)  # type: ignore[arg-type]
            measurements = Measurements((interface,), SchedulesNow(schedules))
            decision = decide(now_s=self.at_s, state=self.state, measurements=measurements, policy=policy)
            self.state = decision.state
        return decision


def of_class(decision: Decision, name: str = "storage") -> ClassAllocation:
    return next(entry for entry in decision.allocation.interfaces[0].classes if entry.name == name)


def storage(figures: str, *, egress: str = "1 Gbit/s", more: str = "") -> Policy:
    return load(FAST.format(egress=egress) + f"[class.storage]\n{figures}\n" + more)


def kernel_would_be_told(before: Decision, after: Decision) -> bool:
    slots: dict[tuple[int | None, str], int] = {(USER, "train"): 0}
    shapes = [shape_of(one.allocation.interfaces[0], rules=(), slots=slots) for one in (before, after)]
    return shapes[0] != shapes[1]


@pytest.mark.parametrize(("was", "becomes"), [(30.0, 15.0), (15.0, 30.0), (30.0, 29.9), (300.0, 299.0)])
def test_another_ceiling_is_in_force_at_once_and_written_to_the_kernel(was: float, becomes: float) -> None:
    host, least = Host(), 'guarantee = "5 Mbit/s"\nfloor = "1 Mbit/s"\n'
    before = host.decide(storage(f'{least}ceiling = "{was} Mbit/s"'), ticks=5)
    after = host.decide(storage(f'{least}ceiling = "{becomes} Mbit/s"'))
    assert of_class(before).ceil_bits_per_s == was * 1e6
    assert of_class(after).ceil_bits_per_s == of_class(after).ceiling_bits_per_s == becomes * 1e6
    assert kernel_would_be_told(before, after)


def test_a_schedule_s_ceiling_is_in_force_at_its_minute_on_a_fast_link() -> None:
    policy = storage(
        'guarantee = "50 Mbit/s"\nfloor = "10 Mbit/s"\nceiling = "300 Mbit/s"', egress="10 Gbit/s",
        more='[[schedule]]\nname = "office"\nfrom = "08:00"\nto = "18:00"\ntimezone = "UTC"\n'
        '[schedule.class.storage]\nceiling = "150 Mbit/s"\n',
    )  # fmt: skip
    host = Host()
    night = host.decide(policy, ticks=5)
    day = host.decide(policy, schedules=(ScheduleInForce("office", "UTC", None, None),))
    assert of_class(night).ceil_bits_per_s == 300e6
    assert of_class(day).ceil_bits_per_s == 150e6
    assert kernel_would_be_told(night, day)
    assert of_class(host.decide(policy)).ceil_bits_per_s == 300e6


def test_another_guarantee_is_the_rate_of_who_wants_it_at_once() -> None:
    def promised(mbit: float) -> Policy:
        return load(GIGABIT + f'[class.other]\nguarantee = "{mbit} Mbit/s"\nfloor = "1 Mbit/s"\n')

    host = Host()
    for mbit in (15.0, 20.0, 10.0, 10.1):
        decision = host.decide(promised(mbit), ticks=3, waiting=("other",))
        assert of_class(decision, "other").rate_bits_per_s == mbit * 1e6


def test_a_small_guarantee_on_a_fast_link_is_repaid() -> None:
    """What is owed of 5 Mbit/s is a two-hundredth of the link: it is counted by the promise, not by the link."""
    policy = storage('guarantee = "5 Mbit/s"\nguarantee_window = "10 s"\nfloor = "1 Mbit/s"')
    decision = Host().decide(policy, ticks=10, waiting=("storage",))
    assert of_class(decision).reason.code == "guarantee-repaid"
    assert of_class(decision).rate_bits_per_s >= 5e6


def test_another_job_ceiling_is_in_force_and_written() -> None:
    def limited(mbit: float) -> Policy:
        return load(GIGABIT + f'[job.train]\nceiling = "{mbit} Mbit/s"\n')

    host = Host()
    before, after = host.decide(limited(30.0), ticks=5), host.decide(limited(29.9))
    assert [one.allocation.interfaces[0].jobs[0].ceil_bits_per_s for one in (before, after)] == [30e6, 29.9e6]
    assert kernel_would_be_told(before, after)


def test_a_change_while_the_counters_cannot_be_read_is_in_force_all_the_same() -> None:
    host = Host()
    host.decide(storage('guarantee = "1 Mbit/s"\nfloor = "1 Mbit/s"\nceiling = "30 Mbit/s"'), ticks=5)
    lower = storage('guarantee = "1 Mbit/s"\nfloor = "1 Mbit/s"\nceiling = "15 Mbit/s"')
    after = decide(now_s=9.0, state=host.state, measurements=Measurements(), policy=lower)
    assert of_class(after).ceil_bits_per_s == 15e6


def test_what_is_measured_moves_nothing_within_two_percent_of_the_promise() -> None:
    policy, host = load(GIGABIT), Host()
    before = host.decide(policy, ticks=30, sent={"compute": 100_000_000})
    nearly = host.decide(policy, sent={"compute": 101_000_000})
    assert of_class(nearly, "compute").demand_bits_per_s != of_class(before, "compute").demand_bits_per_s
    assert not kernel_would_be_told(before, nearly)
    more = host.decide(policy, ticks=3, sent={"compute": 150_000_000})
    assert kernel_would_be_told(before, more)


@st.composite
def class_policies(draw: st.DrawFn) -> tuple[ClassPolicy, ...]:
    """Any promises that a file may make on a link of 1 Gbit/s, small ones too."""
    made = []
    for entry in load(GIGABIT).classes:
        ceiling = draw(st.integers(1, 10) | st.integers(1, 240_000_000))
        guarantee = draw(st.integers(0, ceiling))
        floor = draw(st.integers(0, guarantee))
        made.append(
            replace(entry, floor=Share(None, floor), guarantee=Share(None, guarantee), ceiling=Share(None, ceiling))
        )
    return tuple(made)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            class_policies(),
            st.sets(st.sampled_from(CLASS_NAMES)),
            st.dictionaries(st.sampled_from(CLASS_NAMES), st.integers(0, 200_000_000)),
        ),
        min_size=2,
        max_size=6,
    )
)  # fmt: skip
def test_no_figure_in_force_is_outside_what_today_s_policy_allows(
    ticks: list[tuple[tuple[ClassPolicy, ...], set[str], dict[str, int]]],
) -> None:
    host, policy = Host(), load(GIGABIT)
    for classes, waiting, sent in ticks:
        decision = host.decide(replace(policy, classes=classes), waiting=tuple(waiting), sent=sent)
        for own, entry in zip(classes, decision.allocation.interfaces[0].classes, strict=True):
            assert own.floor.rate_bits_per_s is not None
            assert own.ceiling.rate_bits_per_s is not None
            assert entry.ceil_bits_per_s == own.ceiling.rate_bits_per_s
            assert own.floor.rate_bits_per_s <= entry.rate_bits_per_s <= own.ceiling.rate_bits_per_s
