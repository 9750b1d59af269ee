"""Who is believed, how far, and how that is lost and won back; and what a liar can take, whatever he announces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.bursts import announced as bursts
from broker.law.bursts import credit
from broker.law.bursts.announced import follow, using
from broker.law.bursts.tracker import BURSTS_PER_USER_MAX, JOBS_PER_USER_MAX
from broker.law.decide import decide
from broker.law.state import InterfaceState, JobState, Standing, State
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

CAPACITY = 40_000_000
MB = 1_000_000
TICK_S = 0.1


@dataclass
class Link:
    """The book of one interface, tick by tick; training sends what it is told to."""

    state: InterfaceState = field(default_factory=lambda: InterfaceState("a"))
    now_s: float = 0.0
    sent_bytes: int = 0
    held_s: float = 0.0

    def tick(self, present: Sequence[Burst] = (), *, sends: int = 0, known: bool = True) -> None:
        self.now_s += TICK_S
        self.sent_bytes += sends
        self.state, active = follow(
            self.state, present, sent_bytes=self.sent_bytes if known else None, capacity_bits_per_s=CAPACITY,
            now_s=self.now_s,
        )  # fmt: skip
        if using(active, throughput_bits_per_s=sends * 8 / TICK_S, capacity_bits_per_s=CAPACITY):
            self.held_s += TICK_S

    def burst(self, announced: int, sent: int, *, job: str = "J", uid: int = 1000, step: int = 1) -> int:
        """A burst of two ticks and a pause; gives what was credited."""
        self.tick([Burst(job, step, announced, 0.0, 1.0, uid=uid)])
        (entry,) = [one for one in self.state.bursts if one.job == job]
        self.tick([Burst(job, step, announced, 0.1, 0.9, uid=uid)], sends=sent)
        self.tick()
        return entry.credited_bytes

    def job(self, name: str = "J") -> JobState:
        (found,) = [job for job in self.state.jobs if job.job == name]
        return found


def test_three_unused_bursts_in_a_row_cost_the_privilege_for_a_time_that_doubles_up_to_a_bound() -> None:
    link = Link()
    link.burst(4 * MB, 4 * MB)
    credits = [link.burst(4 * MB, MB // 2) for _ in range(4)]
    assert credits == [4 * MB, 4 * MB, 4 * MB, 0]
    bars = [link.job().barred_s]
    for _ in range(10):
        link.now_s += link.job().barred_s + 1
        link.state = replace(link.state, jobs=(replace(link.job(), burst_bytes=(4 * MB,)),))
        assert link.burst(4 * MB, 0) == 4 * MB, "on trial it is believed once"
        bars.append(link.job().barred_s)
    assert bars[:4] == [10, 20, 40, 80]
    assert max(bars) == credit.BARRED_S_MAX


def test_used_bursts_give_the_privilege_back_at_once_and_clear_the_record() -> None:
    link = Link()
    link.burst(4 * MB, 4 * MB)
    for _ in range(3):
        link.burst(4 * MB, 0)
    assert [link.burst(4 * MB, 4 * MB) for _ in range(4)] == [0, 0, 0, 4 * MB]
    assert (link.job().barred_s, link.job().unused) == (0.0, 0)


def test_a_small_burst_now_and_then_costs_nothing() -> None:
    link = Link()
    credits = [link.burst(4 * MB, 4 * MB if number % 3 else MB // 10) for number in range(30)]
    assert min(credits[4:]) == 4 * MB


def test_a_terabyte_due_in_a_millisecond_is_believed_as_a_first_burst_and_holds_nobody_past_its_deadline() -> None:
    link = Link()
    link.tick([Burst("J", 1, 10**12, 0.0, 0.001)])
    assert link.state.bursts[0].credited_bytes == CAPACITY * 2 // 8
    link.tick([Burst("J", 1, 10**12, 0.1, -0.099)])
    assert link.held_s == pytest.approx(TICK_S)


def test_a_deadline_in_the_past_holds_nobody() -> None:
    link = Link()
    for step in range(20):
        link.tick([Burst("J", step, MB, 0.0, -0.5)])
    assert link.held_s == 0


def test_a_new_name_for_each_burst_is_believed_four_times_and_then_once_a_minute() -> None:
    link = Link()
    believed = 0
    for number in range(400):
        believed += link.burst(10 * MB, 0, job=f"n{number}") > 0
    assert believed <= credit.NAMES_AT_ONCE + link.now_s / credit.NAME_S
    assert len(link.state.jobs) <= JOBS_PER_USER_MAX


def test_a_barred_job_cannot_wash_itself_clean_by_another_name() -> None:
    link = Link()
    for _ in range(4):
        link.burst(4 * MB, 0)
    assert link.job().standing is Standing.BARRED
    assert link.burst(4 * MB, 0, job="K") == 0
    for number in range(JOBS_PER_USER_MAX + 4):
        link.burst(MB, 0, job=f"n{number}")
    assert link.job().standing is Standing.BARRED, "it is not forgotten for newer names"


def test_one_users_lies_cost_another_nothing() -> None:
    link = Link()
    for number in range(60):
        link.burst(10**12, 0, job="J", uid=1001, step=number)
        link.burst(10**12, 0, job=f"n{number}", uid=1001)
        crowd = [Burst(f"0{name}", 1, 10**12, 0.0, 1.0, uid=1) for name in range(200)]
        link.tick(crowd)
    state = link.state
    link.tick([Burst("J", 1, 4 * MB, 0.0, 1.0, uid=1000)])
    (mine,) = [burst for burst in link.state.bursts if burst.uid == 1000]
    assert mine.credited_bytes == 4 * MB
    assert sum(burst.uid == 1 for burst in state.bursts) == BURSTS_PER_USER_MAX


def test_steps_that_repeat_or_go_back_are_bursts_like_any_other() -> None:
    for steps in ([7] * 10, range(10, 0, -1), [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]):
        link = Link()
        assert [link.burst(4 * MB, 4 * MB, step=step) for step in steps] == [4 * MB] * 10
        lies = [link.burst(4 * MB, 0, step=step) for step in steps]
        assert lies[3:] == [0] * 7


def test_bursts_of_next_to_nothing_hold_for_next_to_nothing() -> None:
    """One after the other, each begun in the tick in which the one before was used and ended."""
    link = Link()
    for step in range(200):
        link.tick([Burst("J", step, 1000, 0.0, 1.0)], sends=1000)
        link.tick([Burst("J", step, 1000, 0.1, 0.9)])
    assert link.held_s == 0
    assert not any(job.barred_s for job in link.state.jobs)
    for size, new_s in ((MB, bursts.START_S), (90_000, 0.06)):
        for age_s, held in ((new_s - 0.001, True), (new_s + 0.001, False)):
            burst = bursts.ActiveBurst("J", 1, size, size, 1.0, age_s)
            assert bool(using([burst], throughput_bits_per_s=0, capacity_bits_per_s=CAPACITY)) is held
        burst = bursts.ActiveBurst("J", 1, size, size, 1.0, 0.01)
        again_s = bursts.again_s(
            (), [burst], throughput_bits_per_s=None, capacity_bits_per_s=CAPACITY, lead_s=0.0, now_s=0.0
        )
        assert again_s == pytest.approx(new_s - 0.01), "it is let back then, not at the next tick"


def test_a_counter_that_is_not_known_or_began_anew_measures_nothing_and_costs_nothing() -> None:
    link = Link()
    link.burst(4 * MB, 4 * MB)
    for _ in range(10):
        link.tick([Burst("J", 1, 4 * MB, 0.0, 1.0, uid=1000)])
        link.tick(known=False)
        link.tick([Burst("J", 1, 4 * MB, 0.0, 1.0, uid=1000)])
        link.sent_bytes = 0
        link.tick()
        link.sent_bytes = 4 * MB
        link.tick([Burst("J", 1, 4 * MB, 0.0, 1.0, uid=1000)], known=False)
        link.tick()
    assert link.job().unused == 0
    assert max(link.job().burst_bytes) == 4 * MB, "the whole counter is no burst"
    assert link.burst(4 * MB, 4 * MB) == 4 * MB


lies = st.lists(
    st.tuples(
        st.integers(0, 30),  # which name
        st.integers(0, 3),  # which step
        st.integers(0, 10**15),
        st.floats(-2.0, 60.0),
        st.integers(1, 12),  # ticks
    ),
    min_size=20,
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(lies)
def test_whatever_a_user_announces_and_does_not_send_what_he_takes_is_bounded(
    reported: list[tuple[int, int, int, float, int]],
) -> None:
    """Three beginnings of 0.3 s (and the tick that sees them end) for each name that is believed."""
    link = Link()
    for name, step, size, deadline_s, ticks in reported:
        for tick in range(ticks):
            burst = Burst(f"n{name}", step, size, tick * TICK_S, deadline_s - tick * TICK_S, uid=1000)
            link.tick([burst] if burst.remaining_s > -1 else [])
        link.tick()
    names = credit.NAMES_AT_ONCE + link.now_s / credit.NAME_S
    trials = link.now_s / credit.BARRED_S
    assert link.held_s <= (names * credit.UNUSED_IN_A_ROW + trials) * (bursts.START_S + TICK_S)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1000, 10**9)), max_size=60), st.integers())
def test_honest_bursts_of_any_size_keep_their_credit(reported: list[tuple[int, int, int]], seed: int) -> None:
    link = Link()
    mixer = random.Random(seed)
    for name, step, size in reported:
        link.burst(size, int(size * mixer.uniform(0.5, 1.1)), job=f"n{name}", step=step, uid=name)
    assert not any(job.barred_s for job in link.state.jobs)


def test_a_lost_privilege_is_an_alarm_and_a_reason_with_figures() -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')
    state, now_s, codes = State(), 0.0, []
    for step in range(8):
        for present in (True, False):
            now_s += 0.1
            reported = (Burst("J", step, 4 * MB, 0.0, 1.0, uid=1000),) if present else ()
            classes = tuple(ClassSample(name, 0) for name in CLASS_NAMES)
            measured = Measurements((InterfaceSample("a", None, 0.0, classes, (), reported),))
            decision = decide(now_s=now_s, state=state, measurements=measured, policy=policy)
            state = decision.state
            codes += [one.reason.code for one in decision.credits if one.reason]
    (alarm,) = decision.alarms
    assert (alarm.code, alarm.subject) == ("announcements-unused", "a/J")
    assert "user 1000" in alarm.text
    assert codes[0] == "credit-of-first"
    assert codes[-1] == "credit-lost"
