"""Deadlines of storage: the pace of a backlog, its projected end, the alarm with hysteresis, and the raised promise."""

from __future__ import annotations

import pytest

from broker.law.sharing import deadlines
from broker.law.sharing.promises import promises_of
from broker.law.state import DeadlineState
from broker.model.values import Need
from broker.policy.toml import load

GB, HOUR, MBIT = 10**9, 3600.0, 10**6
POLICY = load('version = 1\n[[interface]]\nname = "a"\negress = "100 Mbit/s"\n')


class Copy:
    """A backlog that gets less at a rate, read each ten seconds, as decided on each second."""

    def __init__(self, backlog_bytes: int, *, due_s: float) -> None:
        self.left, self.shown, self.due_s, self.now_s = float(backlog_bytes), backlog_bytes, due_s, 0.0
        self.states: tuple[DeadlineState, ...] = ()

    @property
    def need(self) -> Need:
        return Need("s-1", 0, self.shown, 0.0, self.due_s - self.now_s)

    def run(self, duration_s: float, bits_per_s: float) -> DeadlineState:
        for _ in range(int(duration_s)):
            self.now_s += 1.0
            self.left = max(0.0, self.left - bits_per_s / 8)
            if self.now_s % 10 == 0:
                self.shown = int(self.left)
            self.states = deadlines.follow(self.states, (self.need,), now_s=self.now_s)
        return self.states[0]

    def alarm(self, share_bits_per_s: int = 10**9) -> str:
        found = deadlines.alarm(
            "eth0", self.states, (self.need,), all_bits_per_s=10 * MBIT, share_bits_per_s=share_bits_per_s
        )
        return "" if found is None else found.text


def test_a_copy_that_will_be_late_is_known_hours_before() -> None:
    copy = Copy(45 * GB, due_s=8 * HOUR)  # 12.5 Mbit/s would do
    assert copy.run(50, 5 * MBIT).at_risk is False, "not known yet"
    assert copy.run(30, 5 * MBIT).at_risk is True
    for words in ("eth0" not in copy.alarm(), "due in 7.98 h" in copy.alarm(), "done in 20 h" in copy.alarm()):
        assert words, copy.alarm()
    assert "12.5 Mbit/s" in copy.alarm()


def test_a_copy_in_time_is_no_alarm_whatever_its_share() -> None:
    copy = Copy(45 * GB, due_s=8 * HOUR)
    copy.run(120, 15 * MBIT)
    assert copy.alarm(share_bits_per_s=1) == ""


def test_before_the_pace_is_known_the_share_decides() -> None:
    copy = Copy(45 * GB, due_s=8 * HOUR)
    copy.run(10, 0)
    assert "at present demand" in copy.alarm(share_bits_per_s=9 * MBIT)
    assert copy.alarm(share_bits_per_s=10 * MBIT) == ""


def test_it_clears_when_it_fits_again_and_does_not_flutter_between() -> None:
    copy = Copy(45 * GB, due_s=8 * HOUR)
    copy.run(600, 12.3 * MBIT)  # 2 % late
    assert copy.states[0].at_risk is False
    copy.run(600, 5 * MBIT)
    assert copy.states[0].at_risk is True
    copy.run(600, 13 * MBIT)  # 2 % early
    assert copy.states[0].at_risk is True
    copy.run(600, 20 * MBIT)
    assert copy.states[0].at_risk is False


def test_bursts_of_training_that_storage_waits_for_are_no_alarm() -> None:
    copy = Copy(45 * GB, due_s=8 * HOUR)
    for _ in range(20):
        assert not copy.run(5, 0).at_risk
        assert not copy.run(5, 30 * MBIT).at_risk


def test_new_data_at_once_does_not_stop_the_pace() -> None:
    copy = Copy(9 * GB, due_s=8 * HOUR)
    copy.run(600, 20 * MBIT)
    copy.left += 20 * GB  # a folder was added; at this pace all is there in four hours
    for _ in range(60):
        assert copy.run(10, 20 * MBIT).at_risk is False, copy.alarm()
    assert copy.states[0].pace_bits_per_s == pytest.approx(20 * MBIT, rel=0.1)


@pytest.mark.parametrize("rate", [0.0, -8 * MBIT])
def test_a_backlog_that_does_not_get_less_has_no_end(rate: float) -> None:
    copy = Copy(1 * GB, due_s=8 * HOUR)
    state = copy.run(120, rate)
    assert (deadlines.pace_bits_per_s(state), deadlines.projected_s(state, copy.shown)) == (0, None)
    assert "does not get less" in copy.alarm()


def test_the_projected_end_is_that_of_the_pace() -> None:
    copy = Copy(9 * GB, due_s=8 * HOUR)
    state = copy.run(600, 10 * MBIT)
    assert deadlines.projected_s(state, copy.shown) == pytest.approx(7200 - 600, rel=0.02)


def test_a_session_that_is_gone_is_forgotten() -> None:
    copy = Copy(9 * GB, due_s=8 * HOUR)
    copy.run(600, 10 * MBIT)
    assert deadlines.follow(copy.states, (), now_s=601.0) == ()


@pytest.mark.parametrize(
    ("needed", "guarantee"),
    [(0, 20), (15, 20), (20, 25), (22, 25), (26, 28), (90, 28)],
    ids=["none", "has it", "a tenth more", "a twentieth", "what nobody is promised", "never others' promises"],
)
def test_what_a_deadline_needs_is_promised_out_of_what_nobody_is_promised(needed: int, guarantee: int) -> None:
    before = promises_of(POLICY.classes, 100 * MBIT)
    after = deadlines.raised(before, needed_bits_per_s=needed * MBIT, capacity_bits_per_s=100 * MBIT)
    assert after["storage"].guarantee == guarantee * MBIT
    assert {name: one for name, one in after.items() if name != "storage"} == {
        name: one for name, one in before.items() if name != "storage"
    }
    assert sum(one.guarantee for one in after.values()) <= 100 * MBIT


def test_a_ceiling_is_not_raised() -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\n[class.storage]\nceiling = "21 %"\n')
    after = deadlines.raised(
        promises_of(policy.classes, 100 * MBIT), needed_bits_per_s=90 * MBIT, capacity_bits_per_s=100 * MBIT
    )
    assert after["storage"].guarantee == after["storage"].ceiling == 21 * MBIT
