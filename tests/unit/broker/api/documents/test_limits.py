"""Since when something limits a class or job: pauses belong to it, longer ones end it, and nothing is kept for ever."""

from __future__ import annotations

import pytest

from broker.api.documents.limits import RETURNS_S, LimitHistory
from broker.model.reasons import Reason

KEY = ("eth0", "storage")


def follow(history: LimitHistory, code: str, now_s: float) -> tuple[float, float]:
    lasting = history.follow({KEY: Reason(code, "")}, now_s=now_s)[KEY]
    assert lasting.limit.code == code
    return lasting.for_s, lasting.part


def test_a_limit_that_stays_lasts_from_its_first_moment() -> None:
    history = LimitHistory()
    assert follow(history, "link", 100.0) == (0.0, 1.0)
    for second in range(1, 61):
        found = follow(history, "link", 100.0 + second)
    assert found == (60.0, 1.0)


def test_limits_that_take_turns_have_all_lasted_and_share_the_time() -> None:
    history = LimitHistory()
    for second in range(120):
        follow(history, "link" if second % 4 else "burst", float(second))
    for_s, part = follow(history, "burst", 120.0)
    assert for_s == 120.0
    assert part == pytest.approx(0.25, abs=0.02)
    for_s, part = follow(history, "link", 121.0)
    assert for_s == 120.0
    assert part == pytest.approx(0.75, abs=0.02)


def test_a_limit_that_was_gone_for_long_begins_anew() -> None:
    history = LimitHistory()
    follow(history, "link", 0.0)
    for second in range(1, int(RETURNS_S) + 3):
        follow(history, "itself", float(second))
    assert follow(history, "link", RETURNS_S + 3) == (0.0, 1.0)


def test_who_is_gone_is_forgotten() -> None:
    history = LimitHistory()
    follow(history, "link", 0.0)
    assert history.follow({}, now_s=1.0) == {}
    assert follow(history, "link", 2.0) == (0.0, 1.0)
