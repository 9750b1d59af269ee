"""When schedules hold: days, midnight, clocks that jump and come twice, zones, and a host that does not know one."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.measure.schedules import DAYS_AHEAD, Schedules, schedules_at
from broker.model.values import SchedulesNow
from broker.policy.types import SchedulePolicy

DAY_S = 86_400
WORKDAYS = (0, 1, 2, 3, 4)
EVERY_DAY = tuple(range(7))
BERLIN = "Europe/Berlin"


def utc(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp())


def local(text: str, zone: str, fold: int = 0) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp())


def hours(begin: str, end: str, *, days: tuple[int, ...] = EVERY_DAY, zone: str = BERLIN) -> SchedulePolicy:
    def seconds(text: str) -> int:
        return 3600 * int(text[:2]) + 60 * int(text[3:])

    return SchedulePolicy("hours", days, seconds(begin), seconds(end), zone)


def held(schedule: SchedulePolicy, utc_s: int) -> str | None:
    """None where it does not hold, else until when."""
    found = schedules_at(utc_s, [schedule]).held
    return (found[0].until or "always") if found else None


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


def test_where_clocks_go_forward_a_time_that_never_comes_is_later_by_the_jump() -> None:
    """RFC 5545, 3.3.5: such a time is read with the offset before the jump."""
    jump = utc("2026-03-29T01:00")  # 02:00 is 03:00
    assert held(hours("02:30", "05:00"), jump + 1799) is None
    assert held(hours("02:30", "05:00"), jump + 1800) == "2026-03-29T05:00+02:00"
    assert held(hours("01:00", "02:30"), jump + 1799) == "2026-03-29T03:30+02:00"
    assert held(hours("01:00", "02:30"), jump + 1800) is None
    assert held(hours("02:10", "02:50"), jump + 1800) == "2026-03-29T03:50+02:00"
    for second in range(jump - 3600, jump + 7200, 300):  # it would end before it begins
        assert held(hours("02:30", "03:10"), second) is None


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
        assert held(hours("00:00", "24:00", zone=zone), utc(at)) == "always"


ZONES = st.sampled_from(
    ["Europe/Berlin", "America/Havana", "America/Nuuk", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns",
     "Africa/Casablanca", "Pacific/Apia", "UTC"]
)  # fmt: skip


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
    found = schedules_at(now_s, [entry]).held
    if found and found[0].left_s is not None:
        until_s = now_s + found[0].left_s
        assert now_s < until_s <= now_s + (DAYS_AHEAD + 2) * DAY_S
        assert schedules_at(until_s - 1, [entry]).held
        assert not schedules_at(until_s, [entry]).held


@settings(max_examples=200, deadline=None)
@given(ZONES, st.integers(utc("2026-01-01T00:00"), utc("2027-12-31T00:00")), st.integers(0, 1439), st.integers(1, 1440))
def test_outside_the_hours_of_a_change_the_clock_on_the_wall_says_whether_a_schedule_holds(
    zone: str, now_s: int, begin: int, end: int
) -> None:
    place = datetime.UTC if zone == "UTC" else zoneinfo.ZoneInfo(zone)
    here = [datetime.datetime.fromtimestamp(now_s + hours * 3600, place) for hours in range(-26, 3)]
    if begin == end or len({one.utcoffset() for one in here}) > 1:
        return
    minute = 60 * here[26].hour + here[26].minute
    shown = begin <= minute < end if begin < end else minute >= begin or minute < end
    entry = SchedulePolicy("x", EVERY_DAY, 60 * begin, 60 * end, zone)
    assert bool(schedules_at(now_s, [entry]).held) is shown


@pytest.mark.parametrize("name", ["Europe/Berlim", "../etc/passwd", "Europe", "", "a\0b"])
def test_a_schedule_of_a_zone_that_this_host_does_not_know_is_named_and_does_not_hold(name: str) -> None:
    assert schedules_at(0, [hours("00:00", "24:00", zone=name)]) == SchedulesNow((), ("hours",))


def test_utc_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "ZoneInfo", lambda _: pytest.fail("looked up"))
    assert held(hours("00:00", "24:00", zone="UTC"), 0) == "always"


def test_the_answer_is_of_the_second_and_of_the_policy_in_force() -> None:
    now = [float(local("2026-11-20T17:59:59", BERLIN))]
    schedules = Schedules(lambda: now[0])
    office, night = (hours("08:00", "18:00"),), (hours("22:00", "06:00"),)
    assert [one.left_s for one in schedules.now(office).held] == [1]
    assert schedules.now(night).held == ()
    now[0] += 0.9
    assert schedules.now(office).held
    now[0] += 0.1
    assert schedules.now(office).held == ()
    now[0] -= 3600  # the clock is set
    assert [one.left_s for one in schedules.now(office).held] == [3600]
