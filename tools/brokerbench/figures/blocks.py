"""Every figure of training beside storage, computed from raw records alone: pure functions.

Definitions
- A block is the steps of one condition in one round. Its first steps, until it has settled, count in no figure but
  those under `whole`, which are of the block from its first step. Step times are rank 0's.
- ratio: a step's time divided by the median step of the idle block of the same round. Median and 95th percentile are
  over all counted steps of all rounds; `low` and `high` are the smallest and the largest median of a round.
- A block's interval runs from the start of its first counted step to the end of its last. Bytes of an interval are the
  difference of a counter, interpolated linearly between the samples around each end.
- storage of left: storage's wire bytes, divided by the shaped capacity in the intervals minus training's wire bytes.
  Shaped capacity is 97 % of the bottleneck's real rate, in every condition alike, whatever the one at work believes: so
  where nothing shapes, more than 1 can come out.
- Where storage and training leave the bottleneck over one device (receiver), storage is what its sink took, times 1514
  for each 1448 bytes (IPv4, TCP with timestamps, Ethernet), and training what the training host's own link delivered.
- cores: CPU seconds of a program over the seconds of its blocks. idle share: of all the machine's cores, others
  included.
- limit: `cpu` where the machine had less than 8 % of its cores idle or a rank used 0.92 of a core; `network` where 0.9
  of the bottleneck was used; else `waiting`: for each other, or for a shaper.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.measure.fixed import SHAPED_SHARE
from tools.measure.records import Record
from tools.measure.series import Series, percentile

Interval: TypeAlias = tuple[float, float]
Figures: TypeAlias = dict[str, Any]

WIRE_OF_PAYLOAD = 1514 / 1448
IDLE_SHARE_MIN, RANK_CORES_MAX, LINK_SHARE = 0.08, 0.92, 0.9


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index of what each of several got: 1 when all got the same, 1/n when one got all (RFC 5166).

    Nothing for anybody is fair, too: 1.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def followed_within(
    times_s: Sequence[float], values: Sequence[float], *, change_s: float, low: float, high: float, hold_s: float = 0.5
) -> float | None:
    """How long after a change a series of steps came into a band and then stayed in it for `hold_s`.

    Args:
        times_s, values: each value holds until the next time; the last one for ever.

    Returns:
        Seconds, 0 where it was in the band already; None where it never came, or the series ends before it has stayed.
    """
    entered: float | None = None
    before: float | None = None
    for t_s, value in zip(times_s, values, strict=True):
        if t_s <= change_s:
            before = value
            continue
        if before is not None:  # the first value after the change: what held at the change counts from then
            entered, before = (change_s if low <= before <= high else None), None
        if entered is not None and t_s - entered >= hold_s:
            return entered - change_s
        entered = (t_s if entered is None else entered) if low <= value <= high else None
    return None


def gaps(samples: Sequence[Sequence[float]], *, begin_s: float, end_s: float) -> float:
    """The longest time in an interval in which a counter of (time, bytes) did not grow, the ends included."""
    longest, last_s = 0.0, begin_s
    before: float | None = None
    for t_s, value in samples:
        if t_s > end_s:
            break
        if before is not None and value > before and t_s >= begin_s:
            longest, last_s = max(longest, t_s - last_s), t_s
        before = value
    return max(longest, end_s - last_s)


def spread(values: Sequence[float]) -> Figures:
    """Median, 95th percentile, extremes and number of at least one value."""
    return {
        "median": statistics.median(values),
        "p95": percentile(values, 0.95),
        "low": min(values),
        "high": max(values),
        "n": len(values),
    }


@dataclass(frozen=True)
class Block:
    """A block of training, with what the figures take of it."""

    condition: str
    round: int
    steps_s: tuple[float, ...]
    interval: Interval
    compute_bytes: float
    storage_bytes: float
    idle_share: float
    cores: Mapping[str, float]
    rate_bits_per_s: int

    @property
    def seconds(self) -> float:
        """Length of its interval."""
        return self.interval[1] - self.interval[0]


def block_of(record: Record, *, whole: bool = False) -> Block | None:
    """Read a record; None where no step counted.

    Args:
        whole: from its first step, not from the first that counts as settled.
    """
    first = 0 if whole else record["first_counted"]
    rows = [step for step in record["steps"]["training"] if step["rank"] == 0 and step["step"] >= first]
    if not rows:
        return None
    interval = (float(rows[0]["start_s"]), float(rows[-1]["end_s"]))
    counters = record["counters"]
    if counters["storage"] is None:
        storage = WIRE_OF_PAYLOAD * series_of(record["sink"]).delta(interval)
    else:
        storage = counter_of(record, counters["storage"]).delta(interval)
    every = record["steps"]["training"]
    wall_s = max(step["end_s"] for step in every) - min(step["start_s"] for step in every)
    begin, end = record["cpu_s"]["begin"], record["cpu_s"]["end"]
    return Block(
        condition=record["condition"],
        round=record["round"],
        steps_s=tuple(float(step["step_s"]) for step in rows),
        interval=interval,
        compute_bytes=counter_of(record, counters["compute"]).delta(interval),
        storage_bytes=storage,
        idle_share=idle_share(record, interval),
        cores={name: (seconds - begin.get(name, 0.0)) / wall_s for name, seconds in end.items()},
        rate_bits_per_s=record["rate_bits_per_s"],
    )


def counter_of(record: Record, where: Sequence[Any]) -> Series:
    """A counter of the samplers over time: node, interface, column."""
    node, interface, column = where
    rows = [(float(s["t_s"]), float(s["interfaces"][interface][column])) for s in record["samples"][node]]
    return series_of(rows)


def series_of(rows: Sequence[Sequence[float]]) -> Series:
    """A series of (time, value)."""
    return Series(tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def idle_share(record: Record, interval: Interval) -> float:
    """Of the machine's cores in an interval."""
    samples = next(iter(record["samples"].values()))
    times = tuple(float(sample["t_s"]) for sample in samples)
    busy = Series(times, tuple(float(sample["cpu"]["busy_s"]) for sample in samples)).delta(interval)
    total = Series(times, tuple(float(sample["cpu"]["total_s"]) for sample in samples)).delta(interval)
    return 1 - busy / total if total else 0.0


def shares(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures of one scenario of training, by condition."""
    blocks = [block for record in records if (block := block_of(record)) is not None]
    whole = [block for record in records if (block := block_of(record, whole=True)) is not None]
    idle = {block.round: statistics.median(block.steps_s) for block in blocks if block.condition == "idle"}
    found = {}
    for condition in dict.fromkeys(block.condition for block in blocks):
        figures = _condition([block for block in blocks if block.condition == condition], idle)
        figures["whole"] = _training([block for block in whole if block.condition == condition], idle)
        found[condition] = figures
    return found


def _condition(blocks: Sequence[Block], idle: Mapping[int, float]) -> Figures:
    figures = _training(blocks, idle)
    figures["idle_share"] = statistics.median(block.idle_share for block in blocks)
    figures["cores"] = {
        name: statistics.median(block.cores.get(name, 0.0) for block in blocks)
        for name in sorted({name for block in blocks for name in block.cores})
    }
    figures["limit"] = _limit(figures, blocks[0].rate_bits_per_s)
    return figures


def _training(blocks: Sequence[Block], idle: Mapping[int, float]) -> Figures:
    """Steps and storage of the blocks of one condition."""
    seconds = [step_s for block in blocks for step_s in block.steps_s]
    figures: Figures = {
        "step_s": spread(seconds),
        "rounds": len(blocks),
        "storage_bits_per_s": 8 * sum(b.storage_bytes for b in blocks) / sum(b.seconds for b in blocks),
        "compute_bits_per_s": 8 * sum(b.compute_bytes for b in blocks) / sum(b.seconds for b in blocks),
        "storage_of_left": {
            "all": _of_left(blocks),
            "low": min(_of_left([block]) for block in blocks),
            "high": max(_of_left([block]) for block in blocks),
        },
    }
    pairs = [(block, idle[block.round]) for block in blocks if block.round in idle]
    if pairs:
        ratios = [step_s / idle_s for block, idle_s in pairs for step_s in block.steps_s]
        medians = [statistics.median(block.steps_s) / idle_s for block, idle_s in pairs]
        figures["ratio"] = {**spread(ratios), "low": min(medians), "high": max(medians)}
    return figures


def _of_left(blocks: Sequence[Block]) -> float:
    left = sum(SHAPED_SHARE * b.rate_bits_per_s / 8 * b.seconds - b.compute_bytes for b in blocks)
    return sum(b.storage_bytes for b in blocks) / left if left > 0 else 0.0


def _limit(figures: Figures, rate_bits_per_s: int) -> str:
    busiest = max((cores for name, cores in figures["cores"].items() if name.startswith("rank ")), default=0.0)
    if figures["idle_share"] < IDLE_SHARE_MIN or busiest >= RANK_CORES_MAX:
        return "cpu"
    used = figures["storage_bits_per_s"] + figures["compute_bits_per_s"]
    return "network" if used >= LINK_SHARE * rate_bits_per_s else "waiting"
