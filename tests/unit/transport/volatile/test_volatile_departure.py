"""When a member leaves by itself."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from hive_qos.errors import BrokerUnavailableError, MisuseError
from transport.volatile import departure

EVENING = datetime(2026, 3, 2, 18, 0)


@pytest.mark.parametrize(
    ("at", "then"),
    [
        ("18:00:01", datetime(2026, 3, 2, 18, 0, 1)),
        ("18:00", datetime(2026, 3, 3, 18, 0)),
        ("08:00", datetime(2026, 3, 3, 8, 0)),
        ("00:00", datetime(2026, 3, 3)),
    ],
)
def test_it_is_the_next_time_that_the_clock_shows_it(at: str, then: datetime) -> None:
    assert departure.next_s(at, EVENING) == then.timestamp()


@pytest.mark.parametrize("wrong", ["8 o'clock", "24:30", "08:00+02:00", "2026-03-02T08:00"])
def test_what_is_no_time_of_the_day_is_refused(wrong: str) -> None:
    with pytest.raises(MisuseError, match='such as "08:00"'):
        departure.next_s(wrong, EVENING)


def test_who_relies_on_a_broker_that_is_not_there_hears_it_at_once(tmp_path: Path) -> None:
    def begin(broker: str) -> None:
        departure.watch(at="", schedule="office hours", broker=broker, leave=tmp_path.rmdir, is_over=lambda: True)

    with pytest.raises(MisuseError, match="HIVE_BROKER is off"):
        begin("off")
    with pytest.raises(BrokerUnavailableError, match="no broker runs here"):
        begin(str(tmp_path / "session.sock"))
