"""How often something may happen."""

from __future__ import annotations

import pytest

from broker.model.token_bucket import TokenBucket, TokenBuckets


def test_what_came_together_is_let_through_at_once_and_then_at_the_rate() -> None:
    bucket = TokenBucket(per_s=200.0, at_once=100.0, now_s=0.0)
    taken = 0
    while bucket.wait_s() == 0:
        assert bucket.take(now_s=0.0)
        taken += 1
    assert taken == 100
    assert not bucket.take(now_s=0.0)
    assert bucket.wait_s() == pytest.approx(1 / 200)
    assert bucket.take(now_s=0.005)
    assert not bucket.take(now_s=0.005)


def test_each_has_an_allowance_of_his_own_and_the_oldest_is_forgotten() -> None:
    buckets = TokenBuckets[str](per_s=1.0, at_once=1.0, remembered=2)
    assert [buckets.take(name, now_s=0.0) for name in ("a", "a", "b", "b", "c", "a")] == [
        True, False, True, False, True, True,
    ]  # fmt: skip
    assert len(buckets) == 2


def test_what_is_taken_on_credit_is_paid_back_before_anything_is_left() -> None:
    buckets = TokenBuckets[str](per_s=10.0, at_once=5.0, remembered=2)
    assert buckets.charge("a", count=5, now_s=0.0) == 0
    assert buckets.charge("a", count=20, now_s=0.0) == pytest.approx(2.0)
    assert buckets.charge("a", count=0, now_s=1.5) == pytest.approx(0.5)
    assert buckets.charge("b", count=0, now_s=1.5) == 0
    assert buckets.charge("a", count=0, now_s=2.0) == 0
