"""Which of a decision's alarms are shown beside those of the parts that enforce it."""

from __future__ import annotations

import pytest

from broker.daemon.publish import unexplained
from broker.model.values import Alarm


@pytest.mark.parametrize(
    ("code", "shown_of"),
    [
        ("counters-stale", {"refused0", "fine0"}),
        ("interface-missing", {"lost0", "fine0"}),
        ("link-down", {"lost0", "refused0", "fine0"}),
    ],
)
def test_an_alarm_whose_cause_has_an_alarm_of_its_own_is_not_shown(code: str, shown_of: set[str]) -> None:
    alarms = [Alarm(code, name, "") for name in ("lost0", "refused0", "fine0")]
    shown = unexplained(alarms, refused={"refused0"}, lost={"lost0"})
    assert {alarm.subject for alarm in shown} == shown_of
