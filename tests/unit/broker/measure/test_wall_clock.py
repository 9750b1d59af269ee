"""What is measured of the wall clock: UTC, and what the zones of the schedules do around now."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.law.sharing.schedule import offset_at
from broker.measure.wall_clock import DAY_S, DAYS_AHEAD, DAYS_BACK, LIFE_S, WallClocks, zone_clock
from broker.model.values import WallClock, ZoneClock

AUTUMN = int(datetime.datetime(2026, 10, 25, 1, tzinfo=datetime.UTC).timestamp())
"""When clocks of the European Union go back."""


def test_a_zone_is_its_offset_and_its_changes_to_the_second() -> None:
    assert zone_clock("Europe/Berlin", AUTUMN) == ZoneClock("Europe/Berlin", 7200, ((AUTUMN, 3600),))
    assert zone_clock("Asia/Kathmandu", AUTUMN) == ZoneClock("Asia/Kathmandu", 20700)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["Africa/Casablanca", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia", "Europe/Dublin"]),
    st.integers(AUTUMN - 400 * DAY_S, AUTUMN + 400 * DAY_S),
    st.integers(-DAYS_BACK * DAY_S, DAYS_AHEAD * DAY_S),
)
def test_the_offset_at_every_moment_is_that_of_the_database(zone: str, now_s: int, ahead_s: int) -> None:
    known = zone_clock(zone, now_s)
    assert known is not None
    offset = datetime.datetime.fromtimestamp(now_s + ahead_s, tz=zoneinfo.ZoneInfo(zone)).utcoffset()
    assert offset is not None
    assert offset_at(now_s + ahead_s, known) == offset.total_seconds()


@pytest.mark.parametrize("name", ["Europe/Berlim", "../etc/passwd", "Europe", "", "a\0b"])
def test_a_zone_that_this_host_does_not_know_is_none(name: str) -> None:
    assert zone_clock(name, AUTUMN) is None


def test_utc_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "ZoneInfo", lambda _: pytest.fail("looked up"))
    assert zone_clock("UTC", AUTUMN) == ZoneClock("UTC", 0)


def test_whole_seconds_are_read_and_nothing_where_no_zone_is_named() -> None:
    clocks = WallClocks(lambda: AUTUMN + 0.9)
    assert clocks.read(()) is None
    assert clocks.read(["UTC", "UTC"]) == WallClock(AUTUMN, (ZoneClock("UTC", 0),))
    unknown = clocks.read(["Europe/Berlim", "UTC"])
    assert unknown is not None
    assert [zone.name for zone in unknown.zones] == ["UTC"]


def test_a_zone_is_looked_up_again_after_a_while_and_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [float(AUTUMN)], []
    monkeypatch.setattr(
        "broker.measure.wall_clock.zone_clock", lambda name, at_s: looked.append(at_s) or ZoneClock(name, 0)
    )
    clocks = WallClocks(lambda: now[0])
    for later_s in (0, 1, LIFE_S - 1, LIFE_S, LIFE_S + 1, -400 * DAY_S):
        now[0] = AUTUMN + later_s
        clocks.read(["UTC"])
    assert looked == [AUTUMN, AUTUMN + LIFE_S, AUTUMN - 400 * DAY_S]
