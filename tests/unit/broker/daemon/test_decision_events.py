"""What the decision found becomes events: once each, and only where it stays."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from situations import MBIT, idle, sharing

from broker.api.documents.snapshot import Lasting, Snapshot
from broker.daemon.decision_events import AGAIN_S, CLEARED_S, PREVAILS_S, DecisionEvents
from broker.model.reasons import Reason
from broker.model.values import Alarm


class Events:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def _take(self, event: str, **keys: Any) -> None:
        self.told.append((event, keys))

    debug = info = warning = error = _take

    def names(self) -> list[str]:
        return [event for event, _ in self.told]


ALARM = Alarm("guarantees-scaled", "eth0", "too much is promised")


def test_an_alarm_is_told_when_it_comes_and_when_it_has_been_gone_for_a_while() -> None:
    log = Events()
    events = DecisionEvents(log)
    wrong = replace(idle(), alarms=(ALARM,))
    for now_s in (0.0, 1.0, 2.0):
        events.follow(wrong, now_s=now_s)
    assert log.told == [
        ("alarm-raised", {"code": "guarantees-scaled", "subject": "eth0", "text": "too much is promised"})
    ]
    events.follow(idle(), now_s=2.0 + CLEARED_S / 2)
    events.follow(wrong, now_s=3.0 + CLEARED_S / 2)
    assert log.names() == ["alarm-raised"], "it flickers"
    events.follow(idle(), now_s=4.0 + 2 * CLEARED_S)
    assert log.names() == ["alarm-raised", "alarm-cleared"]
    events.follow(wrong, now_s=5.0 + 2 * CLEARED_S)
    assert log.names() == ["alarm-raised", "alarm-cleared", "alarm-raised"]


def with_capacity(rate_bits_per_s: int) -> Snapshot:
    now = idle()
    (link,) = now.decision.allocation.interfaces
    allocation = replace(now.decision.allocation, interfaces=(replace(link, capacity_bits_per_s=rate_bits_per_s),))
    return replace(now, decision=replace(now.decision, allocation=allocation))


def test_a_capacity_is_told_where_it_has_moved_by_a_fifth_however_small_its_steps() -> None:
    log = Events()
    events = DecisionEvents(log)
    for mbit in (100, 95, 90, 85, 81, 79, 75, 79, 81):
        events.follow(with_capacity(mbit * MBIT), now_s=0.0)
    ((event, keys),) = log.told
    assert event == "capacity-changed"
    assert (keys["interface"], keys["direction"], keys["before"], keys["rate"]) == (
        "eth0", "sends", "100 Mbit/s", "79 Mbit/s",
    )  # fmt: skip


def limited(code: str, for_s: float, part: float) -> Snapshot:
    lasting = {("eth0", "compute", 1000, "llm"): Lasting(Reason(code, "because"), for_s, part)}
    return replace(sharing(), lasting=lasting)


def test_a_limit_is_told_once_it_prevails() -> None:
    log = Events()
    events = DecisionEvents(log)
    events.follow(limited("link", PREVAILS_S / 2, 1.0), now_s=0.0)
    events.follow(limited("burst", 60.0, 0.2), now_s=0.0)
    assert log.told == []
    for now_s in (0.0, 0.1, 0.2):
        events.follow(limited("link", PREVAILS_S, 0.6), now_s=now_s)
    ((event, keys),) = log.told
    assert event == "limit-changed"
    assert (keys["job"], keys["uid"], keys["limited_by"], keys["before"]) == ("llm", 1000, "link", "idle")
    events.follow(limited("idle", PREVAILS_S, 1.0), now_s=AGAIN_S)
    assert [keys["limited_by"] for _, keys in log.told] == ["link", "idle"]


def test_two_limits_that_take_turns_with_each_burst_do_not_fill_the_log() -> None:
    log = Events()
    events = DecisionEvents(log)
    for tick in range(1800):  # three minutes: an old cause keeps its part for long
        code = "burst" if tick % 10 < 7 else "link"
        events.follow(limited(code, 60.0, 0.7), now_s=tick / 10)
    assert 1 <= len(log.told) <= 3
