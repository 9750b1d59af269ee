"""The page's history: rates by counters, steps that are missing, a fixed size."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from status_documents import snapshot

from broker.api.documents.snapshot import Snapshot
from broker.model.values import ClassSample
from broker.page import history
from broker.page.history import GAP_S_MAX, IDLE_S_MIN, SERIES_MAX, SPANS, History, Span

BEGAN = snapshot()


def after(sent_bytes: int, *, jobs: tuple[str, ...] = ("train",), job_bytes: int = 0) -> Snapshot:
    """The host when compute and each job have sent so much."""
    sample = BEGAN.measurements.interfaces[0]
    job = sample.jobs[0]
    measured = replace(
        sample,
        classes=(ClassSample("compute", sent_bytes), ClassSample("storage", 0)),
        jobs=tuple(replace(job, job=name, leaf_sent_bytes=None, delivered_bytes=job_bytes) for name in jobs),
    )
    return replace(BEGAN, measurements=replace(BEGAN.measurements, interfaces=(measured,)))


def rates(span: Span, traffic_class: str = "compute", kind: str = "class") -> list[int | None]:
    found = [one for one in span.series if (one.kind, one.traffic_class) == (kind, traffic_class)]
    return list(found[0].bits_per_s) if found else []


def test_a_rate_is_what_was_sent_between_two_readings() -> None:
    kept = History()
    kept.record(after(0), now_s=100.0)
    kept.record(after(125_000), now_s=101.0)
    kept.record(after(125_000), now_s=101.5)  # the same second: counts with the next
    kept.record(after(500_000), now_s=102.0)
    assert rates(kept.span(1, since=101)) == [1_000_000, 3_000_000]
    assert rates(kept.span(60, since=1)) == [2_000_000]


def test_a_second_without_a_reading_has_the_rate_around_it_and_a_long_gap_none() -> None:
    kept = History()
    kept.record(after(0), now_s=100.0)
    kept.record(after(250_000), now_s=102.0)
    assert rates(kept.span(1, since=101)) == [1_000_000, 1_000_000]
    later = 102 + GAP_S_MAX + 1
    kept.record(after(250_000), now_s=later)
    assert rates(kept.span(1, since=102)) == [1_000_000, *[None] * GAP_S_MAX, 0]


def test_a_counter_that_goes_back_leaves_its_step_empty() -> None:
    kept = History()
    for second, sent in ((1, 0), (2, 1000), (3, 10), (4, 135)):
        kept.record(after(sent), now_s=float(second))
    assert rates(kept.span(1, since=2)) == [8000, None, 1000]


def test_wire_bytes_of_a_leaf_are_not_compared_with_payload() -> None:
    kept, sample = History(), after(0).measurements.interfaces[0]
    for second, leaf, sent in ((1, None, 0), (2, None, 1000), (3, 50_000_000, 2000), (4, 50_000_125, 3000)):
        jobs = (replace(sample.jobs[0], leaf_sent_bytes=leaf, delivered_bytes=sent),)
        now = replace(BEGAN.measurements, interfaces=(replace(sample, jobs=jobs),))
        kept.record(replace(BEGAN, measurements=now), now_s=float(second))
    assert rates(kept.span(1, since=2), kind="job") == [8000, None, 1000]


def test_ten_minutes_and_a_day_are_kept_and_nothing_more() -> None:
    kept = History()
    for second in range(SPANS[1] + 100):
        kept.record(after(125 * second), now_s=float(second))
    whole = kept.span(1)
    assert (whole.count, rates(whole)) == (SPANS[1], [1000] * SPANS[1])
    kept.record(after(0), now_s=float(60 * SPANS[60] * 3))
    assert kept.span(60).count == SPANS[60]
    assert rates(kept.span(60)) == []


def test_jobs_are_bounded_and_those_that_send_are_not_pushed_out() -> None:
    kept = History()
    kept.record(after(0), now_s=0.0)
    for second in range(1, 4):
        names = tuple(f"idle-{number}" for number in range(SERIES_MAX))
        kept.record(after(0, jobs=names), now_s=float(second))
    assert len(kept) == SERIES_MAX
    later = 10 + IDLE_S_MIN
    for second in range(2):
        kept.record(after(0, jobs=("new",), job_bytes=1000 * second), now_s=float(later + second))
    found = [one for one in kept.span(1, since=later).series if one.name == "new"]
    assert len(kept) == SERIES_MAX
    assert found[0].bits_per_s[-1] == 8000


def test_names_cannot_carry_escapes_to_the_page() -> None:
    kept = History()
    for second in range(2):
        kept.record(after(0, jobs=("a\x1b[31m\u202eb",), job_bytes=second), now_s=float(second))
    assert [one.name for one in kept.span(1).series if one.kind == "job"] == ["a\\x1b[31m\\u202eb"]


def test_the_series_of_one_daemon_take_a_few_mebibytes() -> None:
    kept = history._Kept(0)
    assert sum(ring._values.itemsize * len(ring._values) for ring in kept.rings.values()) * SERIES_MAX < 3 << 20


def test_the_loop_does_not_wait_while_somebody_makes_texts_of_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = History()
    for second in range(100, 103):
        kept.record(after(125_000 * second), now_s=float(second))
    free: list[bool] = []

    def isnan(value: float) -> bool:
        free.append(not kept._lock.locked())
        return math.isnan(value)

    monkeypatch.setattr(history, "math", SimpleNamespace(isnan=isnan, nan=math.nan))
    assert rates(kept.span(60))
    assert free
    assert all(free)


def test_what_is_copied_of_a_ring_is_what_was_put_in_wherever_it_begins() -> None:
    ring = history._Ring(60)
    size = SPANS[60]
    for step in (*range(10, size + 700), size + 705):
        ring.put(step, float(step))
    head = size + 705
    known = {step: step for step in (*range(head - size + 1, size + 700), head)}
    for first in (head - size + 1, size - 1, size, size + 1, head - 1, head, head + 1):
        count = head + 3 - first if first > head - size + 3 else size
        found = [None if math.isnan(value) else int(value) for value in ring.copy(first, count)]
        assert found == [known.get(step) for step in range(first, first + count)]
