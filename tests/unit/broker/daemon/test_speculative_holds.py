"""What is asked for at the moment of an announcement, and when nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from broker.daemon.speculative_holds import READY_S_MAX, AskingAhead
from broker.model.leases import Hold, PreparedHolds
from broker.model.reasons import Reason

HOLDS = (Hold("10.0.0.3", "storage", 2_000_000, 95_000_000, 0.9, Reason("burst-begins", "")),)
READY = (PreparedHolds("eth0", 1000, "job", 50_000, HOLDS),)


@dataclass
class Bench:
    """A clock that stands still, and what was asked for."""

    now_s: float = 100.0
    asked: list[Sequence[Hold]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ahead = AskingAhead(self.asked.append, clock=lambda: self.now_s)


def test_a_burst_of_a_job_that_is_ready_is_asked_for_at_once_and_once() -> None:
    bench = Bench()
    bench.ahead.know(READY, made_s=bench.now_s)
    bench.now_s += READY_S_MAX
    assert bench.ahead.announced(1000, "job", {"eth0": 50_000})
    assert bench.asked == [HOLDS]
    assert not bench.ahead.announced(1000, "job", {"eth0": 50_000}), "what comes next has a decision before it"
    bench.ahead.know(READY, made_s=bench.now_s)
    assert bench.ahead.announced(1000, "job", {"eth0": 50_000})


@pytest.mark.parametrize(
    ("uid", "job", "announced"),
    [
        pytest.param(1001, "job", {"eth0": 50_000}, id="another user's"),
        pytest.param(1000, "other", {"eth0": 50_000}, id="another job's"),
        pytest.param(1000, "job", {"eth1": 50_000}, id="through another interface"),
        pytest.param(1000, "job", {"eth0": 49_999}, id="too small"),
        pytest.param(1000, "job", {}, id="through none"),
    ],
)
def test_no_other_burst_is(uid: int, job: str, announced: Mapping[str, int]) -> None:
    bench = Bench()
    bench.ahead.know(READY, made_s=bench.now_s)
    assert not bench.ahead.announced(uid, job, announced)
    assert bench.asked == []


def test_what_was_ready_too_long_ago_or_is_not_any_more_is_not_asked_for() -> None:
    bench = Bench()
    assert not bench.ahead.announced(1000, "job", {"eth0": 50_000}), "nothing was decided yet"
    bench.ahead.know(READY, made_s=bench.now_s)
    bench.now_s += READY_S_MAX + 0.001
    assert not bench.ahead.announced(1000, "job", {"eth0": 50_000})
    bench.ahead.know(READY, made_s=bench.now_s)
    bench.ahead.know((), made_s=bench.now_s)
    assert not bench.ahead.announced(1000, "job", {"eth0": 50_000})
    assert bench.asked == []
