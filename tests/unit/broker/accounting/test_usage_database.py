"""What was counted is there after a restart, bounded, and a broken file does not stop the daemon."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.accounting import database
from broker.accounting.database import KEPT_S, add, read
from broker.model.usage import Usage, UsageKey, UsageRow
from hive_qos.errors import BrokerRejectedError, ConfigurationError

HOUR = 1_700_000_000 // 3600 * 3600


def key(*, hour_s: int = HOUR, traffic_class: str = "compute", job: str = "", uid: int | None = None) -> UsageKey:
    return UsageKey(hour_s=hour_s, interface="eth0", traffic_class=traffic_class, job=job, uid=uid)


def rows(path: Path, *by: str) -> list[UsageRow]:
    return read(path, since_s=0, until_s=HOUR + 10**9, by=by)


def test_what_is_added_twice_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    for _ in range(2):
        add(
            path,
            {key(job="a", uid=7): Usage(carried_bytes=10, borrowed_bytes=3), key(): Usage(carried_bytes=1)},
            now_s=HOUR,
        )
    assert rows(path, "class", "job") == [
        UsageRow(
            traffic_class="compute", job="", uid=None, carried_bytes=2, lent_bytes=0, borrowed_bytes=0, repaid_bytes=0
        ),
        UsageRow(
            traffic_class="compute", job="a", uid=7, carried_bytes=20, lent_bytes=0, borrowed_bytes=6, repaid_bytes=0
        ),
    ]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("by", "divided"),
    [
        ((), [{}]),
        (("class",), [{"traffic_class": "compute"}, {"traffic_class": "storage"}]),
        (("user",), [{}, {"uid": 7}]),
        (("day",), [{"day_s": HOUR // 86400 * 86400}, {"day_s": (HOUR + 86400) // 86400 * 86400}]),
        (("hour", "interface"), [{"hour_s": HOUR, "interface": "eth0"}, {"hour_s": HOUR + 86400, "interface": "eth0"}]),
    ],
)
def test_a_report_is_divided_as_it_is_asked(
    tmp_path: Path, by: tuple[str, ...], divided: list[dict[str, object]]
) -> None:
    path = tmp_path / "usage.sqlite"
    add(
        path,
        {
            key(uid=7, job="a"): Usage(carried_bytes=1),
            key(hour_s=HOUR + 86400, traffic_class="storage"): Usage(carried_bytes=2),
        },
        now_s=HOUR,
    )
    found = rows(path, *by)
    shown = [
        {name: value for name in one.__struct_fields__ if (value := getattr(one, name)) is not None} for one in found
    ]
    assert [{name: one[name] for name in one if not name.endswith("_bytes")} for one in shown] == divided
    assert sum(one.carried_bytes for one in found) == 3


def test_only_the_hours_that_are_asked_for_count(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    add(path, {key(hour_s=HOUR + n * 3600): Usage(carried_bytes=10**n) for n in range(4)}, now_s=HOUR)
    assert [one.carried_bytes for one in read(path, since_s=HOUR + 3600, until_s=HOUR + 3 * 3600, by=())] == [110]
    assert [one.carried_bytes for one in read(path, since_s=0, until_s=1, by=())] == [0]


def test_what_is_older_than_it_is_kept_goes(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    add(path, {key(): Usage(carried_bytes=1)}, now_s=HOUR)
    add(path, {key(hour_s=HOUR + KEPT_S + 3600): Usage(carried_bytes=2)}, now_s=HOUR + KEPT_S + 3600)
    assert [one.carried_bytes for one in rows(path)] == [2]


@pytest.mark.parametrize(
    "broken", [b"no database at all, but long enough to be read as one" * 40, None], ids=["bytes", "version"]
)
def test_a_file_that_cannot_be_used_is_moved_aside(tmp_path: Path, broken: bytes | None) -> None:
    path = tmp_path / "usage.sqlite"
    if broken is None:
        with sqlite3.connect(path) as file:
            file.execute("PRAGMA user_version = 99")
        file.close()
    else:
        path.write_bytes(broken)
        with pytest.raises(ConfigurationError, match=r"usage\.sqlite.*move it away"):
            rows(path)
    assert add(path, {key(): Usage(carried_bytes=5)}, now_s=HOUR) == str(tmp_path / "usage.sqlite.broken")
    assert [one.carried_bytes for one in rows(path)] == [5]


def test_a_directory_that_cannot_be_written_is_an_error_and_nothing_is_moved(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        add(tmp_path / "missing" / "usage.sqlite", {key(): Usage(carried_bytes=1)}, now_s=HOUR)
    assert rows(tmp_path / "missing" / "usage.sqlite") == []


def test_a_report_of_too_many_rows_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "ROWS_MAX", 3)
    path = tmp_path / "usage.sqlite"
    add(path, {key(hour_s=HOUR + n * 3600): Usage(carried_bytes=1) for n in range(5)}, now_s=HOUR)
    with pytest.raises(BrokerRejectedError, match="shorter time"):
        rows(path, "hour")


def test_a_clock_that_is_wrong_for_a_minute_does_not_cost_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    add(path, {key(hour_s=HOUR + n * 3600): Usage(carried_bytes=1) for n in range(10)}, now_s=HOUR)
    add(path, {}, now_s=HOUR + 10 * KEPT_S)
    assert len(rows(path, "hour")) == 9


def test_a_question_that_takes_too_long_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "READ_S_MAX", 0.0)
    path = tmp_path / "usage.sqlite"
    add(path, {key(hour_s=HOUR + n * 3600): Usage(carried_bytes=1) for n in range(9000)}, now_s=HOUR)
    with pytest.raises(OSError, match="interrupted"):
        rows(path, "hour", "job")
