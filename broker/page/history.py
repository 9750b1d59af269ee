"""What links, classes and jobs sent: each second of ten minutes and each minute of a day, in memory of a fixed size.

A rate is the difference of two readings of a counter over the time between them, so nothing that was sent is missed.
One thread records, any thread reads. The history begins anew with the daemon.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from broker.api.documents.snapshot import Snapshot
from hive_qos.text import printable

SPANS: Final = {1: 600, 60: 1440}
"""Seconds of a step, and how many steps are kept: ten minutes, and a day."""
SERIES_MAX = 256
"""16 links with four classes each, both capacities and what arrives are 128; the rest is for jobs. Each takes 8 KiB."""
GAP_S_MAX = 5
"""Two readings this far apart still say what was sent in between; a longer gap stays empty."""
IDLE_S_MIN = 60
"""A series makes room for a new one after so long at zero."""


class SeriesKey(NamedTuple):
    """What a series is of; `traffic_class` and `name` are empty where they say nothing."""

    interface: str
    direction: Literal["egress", "ingress"]
    kind: Literal["class", "job", "capacity", "total"]
    traffic_class: str = ""
    name: str = ""


class _Counter(NamedTuple):
    """One of the counters behind a series. `leaf`: wire bytes of a job's leaf and its payload are two counters."""

    key: SeriesKey
    uid: int | None = None
    leaf: bool = False


class Series(Struct, frozen=True):
    """Rates of one thing, the oldest first; None where it was not measured."""

    interface: str
    direction: str
    kind: str
    traffic_class: str
    name: str
    bits_per_s: Sequence[int | None]


class Span(Struct, frozen=True):
    """Steps `first` to `first + count - 1` of `step_s` each, counted since some moment, and where the last one ends.

    `ended_s` is how far the last step has come: it may grow still.
    """

    step_s: int
    first: int
    count: int
    ended_s: float
    series: Sequence[Series]


class _Ring:
    """Means of the steps of one series; `head` is the newest step."""

    def __init__(self, step_s: int) -> None:
        self._values = array("f", [math.nan]) * SPANS[step_s]
        self.head = 0
        self._sum, self._count = 0.0, 0

    def put(self, step: int, value: float) -> None:
        """Take in a value of a step, which is not older than the newest."""
        size = len(self._values)
        if step != self.head:
            for empty in range(max(self.head + 1, step - size + 1), step):
                self._values[empty % size] = math.nan
            self.head, self._sum, self._count = step, 0.0, 0
        self._sum, self._count = self._sum + value, self._count + 1
        self._values[step % size] = self._sum / self._count

    def copy(self, first: int, count: int) -> array[float]:
        """Means of some steps, of which the first is none that was before the oldest kept; a few copies of memory."""
        size, head = len(self._values), self.head
        known = max(0, min(count, head + 1 - first))
        begin = first % size
        found = self._values[begin : begin + known]
        found.extend(self._values[: known - len(found)])
        found.extend([math.nan] * (count - known))
        return found


class _Kept:
    def __init__(self, now: int) -> None:
        self.rings = {step_s: _Ring(step_s) for step_s in SPANS}
        self.active = now


class History:
    """`record` in the loop's thread, `span` in any."""

    def __init__(self) -> None:
        self._kept: dict[SeriesKey, _Kept] = {}
        self._counters: dict[_Counter, int] = {}
        self._last_s: float | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def record(self, snapshot: Snapshot, *, now_s: float) -> None:
        """Take in a snapshot, once a second at most: what comes sooner counts with the next."""
        last_s = self._last_s
        if last_s is not None and int(now_s) <= int(last_s):
            return
        counters, rates = _counters(snapshot), dict(_levels(snapshot))
        if last_s is not None:
            for counter, count in counters.items():
                before = self._counters.get(counter)
                if before is not None and count >= before:  # else the tree was built anew
                    rates[counter.key] = rates.get(counter.key, 0.0) + 8 * (count - before) / (now_s - last_s)
        first = int(now_s)
        if last_s is not None and first - int(last_s) <= GAP_S_MAX:
            first = int(last_s) + 1
        self._counters, self._last_s = counters, now_s
        with self._lock:
            for key, rate in rates.items():
                self._put(key, range(first, int(now_s) + 1), rate)

    def span(self, step_s: int, *, since: int = 0) -> Span:
        """The steps from `since` on, as far as they are kept.

        Raises:
            KeyError: no such steps are kept.
        """
        size = SPANS[step_s]
        with self._lock:
            now_s = self._last_s or 0.0
            head = int(now_s) // step_s
            first = min(max(since, head - size + 1, 0), head)
            kept = [(key, one.rings[step_s].copy(first, head - first + 1)) for key, one in self._kept.items()]
        # Here, and not above: the loop waits for the lock, and a day of all series is 370,000 values.
        found = [(key, [None if math.isnan(value) else int(value) for value in values]) for key, values in kept]
        series = [Series(*key, bits_per_s=values) for key, values in found if any(one is not None for one in values)]
        return Span(step_s, first, head - first + 1, now_s - head * step_s, series)

    def _put(self, key: SeriesKey, seconds: range, rate: float) -> None:
        now = seconds[-1]
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= SERIES_MAX and not self._make_room(now):
                return
            kept = self._kept[key] = _Kept(now)
        if rate > 0:
            kept.active = now
        for second in seconds:
            for step_s, ring in kept.rings.items():
                ring.put(second // step_s, rate)

    def _make_room(self, now: int) -> bool:
        """Forget what has been at zero, or gone, for longest."""
        oldest = min(self._kept, key=lambda key: self._kept[key].active)
        if now - self._kept[oldest].active < IDLE_S_MIN:
            return False
        del self._kept[oldest]
        return True


def _counters(snapshot: Snapshot) -> dict[_Counter, int]:
    """Cumulative bytes. Jobs of one name and class are one series, whosever they are."""
    found: dict[_Counter, int] = {}
    managed = {entry.name for entry in snapshot.decision.allocation.ingress}
    for sample in snapshot.measurements.interfaces:
        for one in sample.classes:
            found[_Counter(SeriesKey(sample.name, "egress", "class", one.name))] = one.sent_bytes
        for job in sample.jobs:
            if job.job:
                key = SeriesKey(sample.name, "egress", "job", job.traffic_class, printable(job.job, length_max=64))
                found[_Counter(key, job.uid, job.leaf_sent_bytes is not None)] = job.sent_bytes
        if sample.name in managed and sample.received_bytes is not None:
            found[_Counter(SeriesKey(sample.name, "ingress", "total"))] = sample.received_bytes
    return found


def _levels(snapshot: Snapshot) -> Iterator[tuple[SeriesKey, float]]:
    """What is a rate already."""
    allocation = snapshot.decision.allocation
    for entry in allocation.interfaces:
        yield SeriesKey(entry.name, "egress", "capacity"), entry.capacity_bits_per_s
    for entry in allocation.ingress:
        yield SeriesKey(entry.name, "ingress", "capacity"), entry.capacity_bits_per_s
        for one in entry.classes:
            if one.throughput_bits_per_s is not None:
                yield SeriesKey(entry.name, "ingress", "class", one.name), one.throughput_bits_per_s
