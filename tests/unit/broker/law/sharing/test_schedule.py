"""When schedules hold: days, midnight, clocks that jump and come twice, zones, and a clock that is set back."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.sharing.schedule import DAYS_AHEAD as LOOKED_AHEAD
from broker.law.sharing.schedule import holding, overlaid, utc_of
from broker.law.state import State
from broker.measure.wall_clock import DAY_S, DAYS_AHEAD, DAYS_BACK, zone_clock
from broker.model.values import ClassSample, InterfaceSample, Measurements, WallClock, ZoneClock
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, ClassOverride, ClassPolicy, Policy, SchedulePolicy, Share

WORKDAYS = (0, 1, 2, 3, 4)
EVERY_DAY = tuple(range(7))
BERLIN = "Europe/Berlin"


def utc(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp())


def local(text: str, zone: str, fold: int = 0) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp())


def clock(zone: str, utc_s: int) -> WallClock:
    known = zone_clock(zone, utc_s)
    assert known is not None
    return WallClock(utc_s, (known,))


def hours(begin: str, end: str, *, days: tuple[int, ...] = EVERY_DAY, zone: str = BERLIN) -> SchedulePolicy:
    def seconds(text: str) -> int:
        return 3600 * int(text[:2]) + 60 * int(text[3:])

    override = ClassOverride("storage", ceiling=Share(0.2))
    return SchedulePolicy("hours", days, seconds(begin), seconds(end), zone, (override,))


def held(schedule: SchedulePolicy, utc_s: int) -> str | None:
    """None where it does not hold, else until when."""
    found = holding([schedule], clock(schedule.timezone, utc_s))
    return (found[0].shown.until or "always") if found else None


@pytest.mark.parametrize(
    ("at", "until"),
    [
        ("2026-11-20T07:59:59", None),
        ("2026-11-20T08:00:00", "2026-11-20T18:00+01:00"),  # a Friday
        ("2026-11-20T17:59:59", "2026-11-20T18:00+01:00"),
        ("2026-11-20T18:00:00", None),
        ("2026-11-21T12:00:00", None),
        ("2026-11-23T12:00:00", "2026-11-23T18:00+01:00"),
    ],
)
def test_office_hours_hold_on_workdays_from_their_first_second_to_before_their_last(at: str, until: str | None) -> None:
    assert held(hours("08:00", "18:00", days=WORKDAYS), local(at, BERLIN)) == until


@pytest.mark.parametrize(
    ("at", "until"),
    [
        ("2026-11-20T21:59:59", None),
        ("2026-11-20T22:00:00", "2026-11-21T06:00+01:00"),
        ("2026-11-21T05:59:59", "2026-11-21T06:00+01:00"),  # Saturday: still Friday's night
        ("2026-11-21T06:00:00", None),
        ("2026-11-21T23:00:00", None),
        ("2026-11-23T01:00:00", None),  # Monday: Sunday's night was none
    ],
)
def test_an_interval_over_midnight_belongs_to_the_day_on_which_it_begins(at: str, until: str | None) -> None:
    assert held(hours("22:00", "06:00", days=WORKDAYS), local(at, BERLIN)) == until


def test_days_that_touch_are_one_and_a_week_that_touches_itself_has_no_end() -> None:
    friday = local("2026-11-20T12:00", BERLIN)
    assert held(hours("00:00", "24:00", days=WORKDAYS), friday) == "2026-11-21T00:00+01:00"
    assert held(hours("00:00", "24:00", days=WORKDAYS), friday - 4 * DAY_S) == "2026-11-21T00:00+01:00"
    assert held(hours("00:00", "24:00"), friday) == "always"


def test_where_clocks_go_forward_a_time_that_never_comes_is_the_jump() -> None:
    jump = utc("2026-03-29T01:00")  # 02:00 is 03:00
    assert held(hours("02:30", "05:00"), jump - 1) is None
    assert held(hours("02:30", "05:00"), jump) == "2026-03-29T05:00+02:00"
    assert held(hours("01:00", "02:30"), jump - 1) == "2026-03-29T03:00+02:00"
    assert held(hours("01:00", "02:30"), jump) is None
    for second in range(jump - 3600, jump + 7200, 300):  # all of it is left out
        assert held(hours("02:10", "02:50"), second) is None


def test_where_clocks_go_back_a_time_that_comes_twice_is_its_first() -> None:
    first = utc("2026-10-25T00:30")  # 02:30, an hour before it comes again
    assert held(hours("02:30", "05:00"), first - 1) is None
    for second in range(first, utc("2026-10-25T04:00"), 600):
        assert held(hours("02:30", "05:00"), second) == "2026-10-25T05:00+01:00"
    assert held(hours("01:00", "02:30"), first - 1) == "2026-10-25T02:30+02:00"
    for second in range(first, first + 7200, 300):
        assert held(hours("01:00", "02:30"), second) is None


def test_where_clocks_go_back_over_midnight_the_new_day_goes_on() -> None:
    """Cuba turns 01:00 back to 00:00; the Azores 01:00 to 00:00 as well, Greenland 00:00 to 23:00 of the day before."""
    for zone, at in (("America/Havana", "2026-11-01T05:30"), ("America/Nuuk", "2026-10-25T01:30")):
        found = holding([hours("00:00", "24:00", zone=zone)], clock(zone, utc(at)))
        assert [entry.shown.until for entry in found] == [None]


ZONES = st.sampled_from(
    ["Europe/Berlin", "America/Havana", "America/Nuuk", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns",
     "Africa/Casablanca", "Pacific/Apia", "UTC"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ZONES, st.integers(utc("2026-01-01T00:00"), utc("2027-12-31T00:00")), st.integers(-2 * DAY_S, 2 * DAY_S))
def test_a_local_time_is_the_first_moment_at_which_the_clock_shows_it_or_is_past_it(
    zone: str, now_s: int, ahead_s: int
) -> None:
    """Against the time zone database: no earlier moment shows as late a time as since the last change."""
    known = zone_clock(zone, now_s)
    assert known is not None

    def shows(at_s: int) -> int:
        offset = datetime.datetime.fromtimestamp(at_s, tz=zoneinfo.ZoneInfo(zone)).utcoffset()
        assert offset is not None
        return at_s + int(offset.total_seconds())

    wanted = shows(now_s) + ahead_s
    at_s = utc_of(wanted, known)
    assert shows(at_s) >= wanted
    assert shows(at_s - 1) < wanted
    if shows(at_s) > wanted:
        assert shows(at_s) - shows(at_s - 1) > 1, "only a jump may leave a time out"


@settings(max_examples=200, deadline=None)
@given(
    ZONES,
    st.integers(utc("2026-01-01T00:00"), utc("2027-12-31T00:00")),
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.sets(st.integers(0, 6), min_size=1),
)
def test_until_is_the_first_moment_at_which_it_does_not_hold(
    zone: str, now_s: int, begin: int, end: int, days: set[int]
) -> None:
    if begin == end:
        return
    entry = SchedulePolicy("x", tuple(sorted(days)), 60 * begin, 60 * end, zone)
    found = holding([entry], clock(zone, now_s))
    if found and found[0].until_s is not None:
        assert now_s < found[0].until_s <= now_s + LOOKED_AHEAD * DAY_S
        assert holding([entry], clock(zone, found[0].until_s - 1))
        assert not holding([entry], clock(zone, found[0].until_s))


def test_the_clocks_that_are_recorded_reach_as_far_as_schedules_look() -> None:
    assert DAYS_BACK >= 2
    assert DAYS_AHEAD >= LOOKED_AHEAD + 2


def test_the_later_schedule_wins_key_by_key() -> None:
    base = (ClassPolicy("storage", Share(0.2), 60.0, Share(0.02), Share(1.0), 2.0, 3),)
    early = replace(hours("00:00", "24:00"), name="early")
    late = SchedulePolicy("late", EVERY_DAY, 0, DAY_S, BERLIN, (ClassOverride("storage", weight=5.0),))
    now = clock(BERLIN, utc("2026-11-20T12:00"))
    both = overlaid(base, holding([early, late], now))
    assert (both[0].ceiling, both[0].weight) == (Share(0.2), 5.0)
    lower = replace(early, name="lower", classes=(ClassOverride("storage", ceiling=Share(0.1)),))
    assert overlaid(base, holding([early, lower], now))[0].ceiling == Share(0.1)
    assert overlaid(base, holding([lower, early], now))[0].ceiling == Share(0.2)


def test_a_ceiling_below_a_promise_takes_the_promise_with_it() -> None:
    base = (ClassPolicy("storage", Share(0.2), 60.0, Share(0.02), Share(1.0), 2.0, 3),)
    low = SchedulePolicy("low", EVERY_DAY, 0, DAY_S, BERLIN, (ClassOverride("storage", ceiling=Share(0.01)),))
    (storage,) = overlaid(base, holding([low], clock(BERLIN, utc("2026-11-20T12:00"))))
    assert (storage.guarantee, storage.floor, storage.ceiling) == (Share(0.01), Share(0.01), Share(0.01))


# --- in the decision ---------------------------------------------------------------------------------------------

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


def step(state: State, wall: WallClock | None, *, tick: int, policy: Policy = POLICY) -> Decision:
    samples = tuple(ClassSample(name, 0, 100_000 if name == "storage" else 0) for name in CLASS_NAMES)
    measured = Measurements((InterfaceSample("a", counters_age_s=0.0, classes=samples),), wall)
    return decide(now_s=tick / 10, state=state, measurements=measured, policy=policy)


def storage_of(decision: Decision) -> tuple[int, str]:
    entry = next(one for one in decision.allocation.interfaces[0].classes if one.name == "storage")
    return entry.ceil_bits_per_s, entry.reason.code


def test_storage_is_held_by_the_schedule_with_its_name_and_end_and_let_go_after_it() -> None:
    decision = step(State(), clock(BERLIN, local("2026-11-20T17:59:59", BERLIN)), tick=1)
    assert storage_of(decision) == (CAPACITY // 5, "held-by-schedule")
    assert [(one.name, one.until, one.left_s) for one in decision.allocation.schedules] == [
        ("office", "2026-11-20T18:00+01:00", 1)
    ]
    text = next(one for one in decision.allocation.interfaces[0].classes if one.name == "storage").reason.text
    assert "office" in text
    assert "2026-11-20T18:00+01:00" in text
    decision = step(decision.state, clock(BERLIN, local("2026-11-20T18:00:00", BERLIN)), tick=2)
    assert storage_of(decision)[0] == CAPACITY
    assert decision.allocation.schedules == ()


def test_a_clock_set_back_by_an_hour_is_an_hour_earlier_and_nothing_else() -> None:
    evening = local("2026-11-20T18:30:00", BERLIN)
    decision = step(State(), clock(BERLIN, evening), tick=1)
    assert storage_of(decision)[0] == CAPACITY
    decision = step(decision.state, clock(BERLIN, evening - 3600), tick=2)
    assert storage_of(decision) == (CAPACITY // 5, "held-by-schedule")
    decision = step(decision.state, clock(BERLIN, evening + 1), tick=3)
    assert storage_of(decision)[0] == CAPACITY


def test_without_a_wall_clock_or_its_zone_no_schedule_holds_and_the_missing_zone_is_said() -> None:
    assert storage_of(step(State(), None, tick=1))[0] == CAPACITY
    decision = step(State(), WallClock(local("2026-11-20T12:00:00", BERLIN)), tick=1)
    assert storage_of(decision)[0] == CAPACITY
    assert [(alarm.code, alarm.subject) for alarm in decision.alarms] == [("schedule-unknown", "office")]


def test_a_recording_over_the_end_of_a_schedule_replays_without_the_time_zone_database() -> None:
    state, lines = State(), [header_line(policy=POLICY, state=State())]
    start = local("2026-11-20T17:59:58", BERLIN)
    for tick in range(40):
        wall = WallClock(start + tick // 10, (ZoneClock(BERLIN, 3600),))
        samples = tuple(ClassSample(name, tick * 1000, 100_000) for name in CLASS_NAMES)
        measured = Measurements((InterfaceSample("a", counters_age_s=0.0, classes=samples),), wall)
        decision = decide(now_s=tick / 10, state=state, measurements=measured, policy=POLICY)
        lines.append(tick_line(now_s=tick / 10, measurements=measured, decision=decision))
        state = decision.state
    assert replay(lines).first_difference is None
    assert '"schedules":[{' in lines[1]
    assert '"schedules":[]' in lines[-1]
