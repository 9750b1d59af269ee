"""Figures of the capacity scenario and of the two jobs, from raw records alone: pure functions.

Capacity
- followed: from the change of the link's rate until the capacity that the sender's broker decided was at most the new
  rate (fall; and at least 0.3 of it, for the queue is drained first) or at least 0.9 of 97 % of it (rise), and stayed
  so for a second, longer than a drain lasts. Without a broker nothing follows, and who did not follow the fall has
  nothing to rise from.
- settled: a part of the block from 4 s after its start, 3 s after the fall, 6 s after the rise on: the time that the
  goal gives for following, and what it takes to drain what has gathered until then.
- delay: of echoes that were asked in settled time, there and back over the changing link, 95th percentile.
- used: bytes that crossed the link in settled time, of its rate.
- whole: the same of a whole part, from the change on, with the queue that a fall leaves.

Jobs
- got: a job's reduced bytes in the block, steps at its edges counted in part, in bits a second of payload.
- fairness: Jain's index over what both jobs got; `low` is the least over windows of 10 s.
- kept: storage's wire bits over 60 s, the broker's window, divided by what it is guaranteed in that time (20 % of the
  shaped rate), in those 60 s of the block in which it is least. Training's likewise, of its 60 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import Any, TypeAlias

from tools.brokerbench.figures.blocks import Figures, Interval, counter_of, followed_within, idle_share, jain, series_of
from tools.measure.fixed import SHAPED_SHARE
from tools.measure.records import Record
from tools.measure.series import Series, percentile

SETTLED_AFTER_S = (4.0, 3.0, 6.0)
"""Of the parts of a block: the start, the fall, the rise."""

PARTS = ("start", "fall", "rise")
Span: TypeAlias = Callable[[Record, int], Interval]
"""What counts of a part of a block: `settled` or `whole`."""

FALL_BAND, RISE_SHARE, FOLLOWED_S = (0.3, 1.0), 0.9, 1.0
JOBS_WINDOW_S = 10.0
GUARANTEE_WINDOW_S, GUARANTEE_STEP_S = 60.0, 0.5
GUARANTEES = {"storage": 0.2, "training": 0.6}
TRAINING_HOST = "a"


def capacity(
    records: Sequence[Record], *, host: str = TRAINING_HOST, figure: str = "capacity_bits_per_s"
) -> dict[str, Figures]:
    """The figures of the capacity scenario, by condition.

    Args:
        host: whose broker has to follow. figure: of its ticks, that tells what it takes the link for.
    """
    found = {}
    for condition, blocks in _by_condition(records):
        fall = [_followed(block, 1, host=host, figure=figure) for block in blocks]
        rise = [
            None if fell is None else _followed(block, 2, host=host, figure=figure)
            for block, fell in zip(blocks, fall, strict=True)
        ]
        parts = {
            name: _part(blocks, place, settled) | {"whole": _part(blocks, place, whole)}
            for place, name in enumerate(PARTS)
        }
        found[condition] = {
            "rounds": len(blocks),
            "fall_s": _worst(fall),
            "rise_s": _worst(rise),
            "parts": parts,
            **_worst_part(parts),
            "whole": _worst_part({name: part["whole"] for name, part in parts.items()}),
            "idle_share": statistics.median(
                idle_share(block, (block["parts"][0]["begin_s"], block["parts"][-1]["end_s"])) for block in blocks
            ),
        }
    return found


def _worst_part(parts: Mapping[str, Figures]) -> Figures:
    delays = [parts[name]["delay_s"] for name in ("fall", "rise") if parts[name]["delay_s"] is not None]
    return {"delay_s": max(delays, default=None), "used": min(part["used"] for part in parts.values())}


def _followed(block: Record, place: int, *, host: str, figure: str) -> float | None:
    ticks, part = block["decisions"].get(host, []), block["parts"][place]
    rate = part["rate_bits_per_s"]
    low, high = (FALL_BAND[0] * rate, FALL_BAND[1] * rate) if place == 1 else (RISE_SHARE * SHAPED_SHARE * rate, 1e15)
    times = [tick["t_s"] for tick in ticks if tick["t_s"] <= part["end_s"]]
    values = [tick[figure] for tick in ticks if tick["t_s"] <= part["end_s"]]
    return followed_within(times, values, change_s=part["begin_s"], low=low, high=high, hold_s=FOLLOWED_S)


def _worst(found: Sequence[float | None]) -> Figures | None:
    """Median and largest of all rounds; a round in which it never followed makes both meaningless, and is told."""
    followed = [value for value in found if value is not None]
    if not followed:
        return None
    return {"median": statistics.median(followed), "high": max(followed), "missed": len(found) - len(followed)}


def whole(block: Record, place: int) -> Interval:
    """All the time of a part of a block."""
    part = block["parts"][place]
    return part["begin_s"], part["end_s"]


def settled(block: Record, place: int) -> Interval:
    """The settled time of a part of a block."""
    begin_s, end_s = whole(block, place)
    return begin_s + SETTLED_AFTER_S[place], end_s


def steps_s(block: Record, interval: Interval) -> list[float]:
    """The steps that began and ended in it."""
    begin_s, end_s = interval
    return [
        step["step_s"]
        for step in block["steps"]["training"]
        if step["rank"] == 0 and begin_s <= step["start_s"] and step["end_s"] <= end_s
    ]


def _part(blocks: Sequence[Record], place: int, span: Span) -> Figures:
    trips, used_bytes, could_bytes, steps = [], 0.0, 0.0, []
    for block in blocks:
        part = block["parts"][place]
        interval = span(block, place)
        trips += [trip_s for t_s, trip_s in block["echoes"] if interval[0] <= t_s <= interval[1]]
        used_bytes += counter_of(block, block["crossed"]).delta(interval)
        could_bytes += part["rate_bits_per_s"] / 8 * (interval[1] - interval[0])
        steps += steps_s(block, interval)
    return {
        "rate_bits_per_s": blocks[0]["parts"][place]["rate_bits_per_s"],
        "delay_s": percentile(trips, 0.95) if trips else None,
        "delay_s_median": statistics.median(trips) if trips else None,
        "echoes": len(trips),
        "used": used_bytes / could_bytes if could_bytes > 0 else 0.0,
        "step_s": statistics.median(steps) if steps else None,
    }


def jobs(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures of the two jobs, by condition."""
    found = {}
    for condition, blocks in _by_condition(records):
        whole = [_got(block, (block["begin_s"], block["end_s"])) for block in blocks]
        windows = [jain(list(_got(block, window).values())) for block in blocks for window in _windows(block)]
        found[condition] = {
            "rounds": len(blocks),
            "seconds": sum(block["end_s"] - block["begin_s"] for block in blocks),
            "got_bits_per_s": {job: statistics.mean(got[job] for got in whole) for job in whole[0]},
            "fairness": {
                "median": statistics.median(jain(list(got.values())) for got in whole),
                "low": min(jain(list(got.values())) for got in whole),
                "low_10_s": min(windows, default=1.0),
            },
            "kept": {name: min(_kept(block, name) for block in blocks) for name in ("storage", "training")},
            "idle_share": statistics.median(idle_share(block, (block["begin_s"], block["end_s"])) for block in blocks),
        }
    return found


def _got(block: Record, interval: tuple[float, float]) -> dict[str, float]:
    got = {}
    for job, rows in block["steps"].items():
        reduced = _reduced(rows, block["payload_bytes"][job])
        got[job] = 8 * reduced.delta(interval) / (interval[1] - interval[0])
    return got


def _reduced(rows: Sequence[Record], payload_bytes: int) -> Series:
    """Bytes that a job has reduced over time: they come between the start and the end of each step's all_reduce."""
    points: list[tuple[float, float]] = []
    total = 0.0
    for row in rows:
        if row["rank"] == 0:
            points.append((row["end_s"] - row["reduce_s"], total))
            total += payload_bytes
            points.append((row["end_s"], total))
    return series_of(points)


def _windows(block: Record) -> Iterator[tuple[float, float]]:
    begin_s = block["begin_s"]
    while begin_s + JOBS_WINDOW_S <= block["end_s"]:
        yield begin_s, begin_s + JOBS_WINDOW_S
        begin_s += JOBS_WINDOW_S


def _kept(block: Record, name: str) -> float:
    """In the window in which least of it came; in the whole block where that is shorter."""
    counter = counter_of(block, block["counters"]["storage" if name == "storage" else "compute"])
    begin_s, end_s = block["begin_s"], block["end_s"]
    window_s = min(GUARANTEE_WINDOW_S, end_s - begin_s)
    promised: float = GUARANTEES[name] * SHAPED_SHARE * block["rate_bits_per_s"] / 8 * window_s
    starts = (begin_s + GUARANTEE_STEP_S * number for number in count())
    windows = ((start_s, start_s + window_s) for start_s in takewhile(lambda s: s + window_s <= end_s + 1e-6, starts))
    return min(counter.delta(window) for window in windows) / promised


def _by_condition(records: Sequence[Record]) -> Iterator[tuple[str, list[Any]]]:
    for condition in dict.fromkeys(record["condition"] for record in records):
        yield condition, [record for record in records if record["condition"] == condition]
