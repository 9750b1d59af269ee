"""Work in slices takes its share of a core and no more, and never holds a tick up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.measure.budget import EARLY, CpuBudget


class Load:
    """Work of `pieces` pieces of 1 ms each, on a clock of its own."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.cpu_s, self.begun = pieces, 0.0, 0

    def work(self) -> Iterator[None]:
        self.begun += 1
        for _ in range(self.pieces):
            self.cpu_s += 0.001
            yield

    def sliced(self, **given: float) -> CpuBudget:
        options = {"share": 0.01, "interval_s_min": 0.1, "slice_s": 0.003, **given}
        return CpuBudget(self.work, cpu_clock=lambda: self.cpu_s, **options)


@pytest.mark.parametrize("pieces", [1, 10, 100])
def test_however_long_a_pass_is_it_takes_its_share(pieces: int) -> None:
    load = Load(pieces)
    sliced = load.sliced()
    for tick in range(10_000):
        before_s = load.cpu_s
        sliced.go(now_s=tick / 10)
        assert load.cpu_s - before_s <= 0.004
    assert load.cpu_s / 1000 <= 0.01 / EARLY * 1.01
    assert load.begun >= 9


def test_a_short_pass_is_not_done_more_often_than_wanted() -> None:
    load = Load(1)
    sliced = load.sliced(interval_s_min=5.0)
    for tick in range(1000):
        sliced.go(now_s=tick / 10)
    assert load.begun == pytest.approx(100 / (5 * EARLY), abs=2)


def test_a_pass_that_has_to_come_in_time_comes_whatever_it_takes() -> None:
    load = Load(20)
    sliced = load.sliced(interval_s_max=1.0)
    for tick in range(1000):
        sliced.go(now_s=tick / 10)
    assert load.begun >= 90


def test_an_error_ends_the_pass_and_the_next_one_begins_anew() -> None:
    passes = iter([True, False, False])

    def work() -> Iterator[None]:
        yield
        if next(passes):
            raise OSError("no")

    sliced = CpuBudget(work, share=0.01, interval_s_min=1.0, slice_s=1.0)
    with pytest.raises(OSError, match="no"):
        sliced.go(now_s=0.0)
    assert not sliced.under_way
    assert sliced.go(now_s=0.5) is False, "not at once"
    assert sliced.go(now_s=1.0) is True


def test_who_is_told_to_wait_gives_up_its_pass() -> None:
    load = Load(100)
    sliced = load.sliced()
    sliced.go(now_s=0.0)
    assert sliced.under_way
    sliced.wait(30.0)
    assert sliced.go(now_s=29.0) is False
    assert load.begun == 1
    sliced.go(now_s=30.0)
    assert load.begun == 2
