"""The delay line, with a clock made of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.lab import delay
from tools.lab.delay import DelayLine


def test_a_frame_comes_out_after_the_delay_and_not_before() -> None:
    line = DelayLine(delay_s=0.5, loss=0, seed=1)
    line.push(b"one", now_s=10)
    assert line.next_due_s == 10.5
    assert line.pop_due(now_s=10.4999) is None
    assert line.pop_due(now_s=10.5) == b"one"
    assert line.pop_due(now_s=99) is None
    assert line.next_due_s is None


def test_a_shorter_delay_does_not_overtake() -> None:
    line = DelayLine(delay_s=1, loss=0, seed=1)
    line.push(b"one", now_s=0)
    line.delay_s = 0.1
    line.push(b"two", now_s=0.5)
    assert line.pop_due(now_s=0.7) is None
    assert [line.pop_due(now_s=1), line.pop_due(now_s=1)] == [b"one", b"two"]


def test_the_same_seed_loses_the_same_frames() -> None:
    def survivors(seed: int) -> list[bytes | None]:
        line = DelayLine(delay_s=0, loss=0.3, seed=seed)
        for number in range(2000):
            line.push(b"%d" % number, now_s=0)
        return [line.pop_due(now_s=0) for _ in range(line_length(line))]

    def line_length(line: DelayLine) -> int:
        # 2000 draws at 0.3: mean 600, standard deviation 20.5; five of those.
        assert 498 <= line.lost_frames <= 702
        return 2000 - line.lost_frames

    assert survivors(7) == survivors(7)
    assert survivors(7) != survivors(8)


@pytest.mark.parametrize(("loss", "lost"), [(0.0, 0), (1.0, 100)])
def test_no_loss_loses_nothing_and_full_loss_everything(loss: float, lost: int) -> None:
    line = DelayLine(delay_s=0, loss=loss, seed=1)
    for _ in range(100):
        line.push(b"x", now_s=0)
    assert line.lost_frames == lost


def test_the_queue_is_bounded_and_says_what_it_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "QUEUE_BYTES_MAX", 25)
    line = DelayLine(delay_s=1, loss=0, seed=1)
    for _ in range(3):
        line.push(b"x" * 10, now_s=0)
    assert (line.queued_bytes, line.overrun_frames) == (20, 1)
    line.pop_due(now_s=1)
    line.push(b"x" * 10, now_s=1)
    assert (line.queued_bytes, line.overrun_frames, line.sent_frames) == (20, 1, 1)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2)), max_size=50))
def test_order_is_kept_and_nothing_is_early_whatever_the_delays(steps: list[tuple[float, float]]) -> None:
    line, now_s, earliest_s = DelayLine(delay_s=0, loss=0, seed=1), 0.0, []
    for number, (pause_s, delay_s) in enumerate(steps):
        now_s += pause_s
        line.delay_s = delay_s
        line.push(b"%d" % number, now_s=now_s)
        earliest_s.append(now_s + delay_s)
    came = []
    while (due_s := line.next_due_s) is not None:
        frame = line.pop_due(now_s=due_s)
        assert frame is not None
        assert due_s >= earliest_s[int(frame)]
        came.append(int(frame))
    assert came == list(range(len(steps)))
