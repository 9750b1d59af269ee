"""Every figure, computed from raw records alone: pure functions.

Definitions
- seconds: of one operation, from the first rank's start behind the barrier to the last one's end, divided by the
  number of operations in a row.
- cpu_s_per_gb: user and system time of a rank's process, all threads, for 10^9 bytes of payload; the ranks' mean.
- python_share: of the ranks' CPU time, that of threads which Python knows, native code that they call included. It is
  an upper bound of what Python uses.
- links_s: what the links need at least. processors_s: the CPU time of all ranks and of the lab's relay, divided by the
  machine's cores: the least for whoever spends so much, and no excuse for spending it.
- urgent: `seconds` and `worst_s` are the median and the longest of the urgent operations that began while the large one
  was under way, alone_s the median of those before it; each from the last rank's begin to the last one's end.
  times_alone: seconds by alone_s. after_chunk: the same when CHUNK_BYTES on the slowest link are taken off `seconds`.
- training: `seconds` from the barrier to the step with the loss, where it was `reached` (1 or 0); `steps` so far.
- falling: before_s and after_s are medians of a step's time before the fall, and in the last third of what follows it.
  expected_s: what the links need after the fall for a step's gradients, and what a step took before beside what the
  links needed then. follow_s: from the fall to the begin of the first three steps in a row within 1.25 of expected_s,
  or to the end where there are none: a plan that does not follow settles, too, but later than it could.
- loss_gap: the largest relative difference of the loss to another contender's at the same step of the same seed.
- A figure of a cell is the median over its repetitions, with the smallest and the largest. A ratio is taken within a
  repetition, and then the median is taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from tools.bench.figures import GB
from tools.collectivesbench import bounds
from tools.collectivesbench.networks import Network, fallen
from tools.collectivesbench.settings import KIB

Record: TypeAlias = Mapping[str, Any]
CHUNK_BYTES = 512 * KIB
"""Of hive's messages: what may be on a link already is not overtaken."""
FOLLOWED, FOLLOWED_STEPS = 1.25, 3


def collective(record: Record) -> dict[str, float]:
    """The figures of one turn.

    Raises:
        ValueError: its clock says that nothing took any time.
    """
    ranks, count, machine = record["ranks"], record["count"], record["machine"]
    seconds = (max(rank["end_s"] for rank in ranks) - min(rank["begin_s"] for rank in ranks)) / count
    if seconds <= 0:
        raise ValueError(f"an operation that took {seconds} s")
    cpu_s, python_s = sum(rank["cpu_s"] for rank in ranks), sum(rank["python_s"] for rank in ranks)
    network = network_of(record)
    found = {
        "seconds": seconds,
        "cpu_s_per_gb": cpu_s / len(ranks) * GB / (count * record["bytes"]),
        "links_s": bounds.links_s(network, record["operation"], record["bytes"]),
        "processors_s": bounds.processors_s(cpu_s=cpu_s + machine["relay_s"], cores=machine["cores"]) / count,
    }
    if cpu_s:
        found["python_share"] = min(1.0, python_s / cpu_s)
    return found


def urgent(record: Record) -> dict[str, float]:
    """The figures of one turn of urgent operations alone and beside a large one.

    Raises:
        ValueError: none began while the large one was under way on every rank.
    """
    ranks, network = record["ranks"], network_of(record)
    covered = [all(each) for each in zip(*(rank["covered"] for rank in ranks), strict=True)]
    beside_s = [took_s for took_s, counts in zip(_took_s(ranks, "beside"), covered, strict=True) if counts]
    if not beside_s:
        raise ValueError("the large operation had ended before any urgent one began")
    alone_s, seconds = statistics.median(_took_s(ranks, "alone")), statistics.median(beside_s)
    chunk_s = 8 * CHUNK_BYTES * bounds.WIRE / min(network.links_bits_per_s)
    return {
        "seconds": seconds,
        "worst_s": max(beside_s),
        "alone_s": alone_s,
        "times_alone": seconds / alone_s,
        "after_chunk": (seconds - chunk_s) / alone_s,
        "links_s": bounds.links_s(network, record["task"], record["bytes"]),
    }


def _took_s(ranks: Sequence[Record], which: str) -> list[float]:
    """Of each operation in a row, from the last rank's begin to the last one's end."""
    turns = zip(*(rank[which] for rank in ranks), strict=True)
    return [max(end_s for _, end_s in turn) - max(begin_s for begin_s, _ in turn) for turn in turns]


def training(record: Record) -> dict[str, float]:
    """The figures of one training to a loss."""
    first, curve = record["ranks"][0], record["ranks"][0]["curve"]
    cpu_s = statistics.mean(rank["cpu_s"] for rank in record["ranks"])
    found = {"reached": float(first["reached"]), "steps": len(curve), "cpu_s_per_step": cpu_s / len(curve)}
    return found | ({"seconds": curve[-1][0] - first["begin_s"]} if first["reached"] else {})


def falling(record: Record) -> dict[str, float]:
    """The figures of one training over a link that fell.

    Raises:
        ValueError: fewer than two steps before the fall, or six after it.
    """
    first, fell_s = record["ranks"][0], record["fell_s"]
    ends_s = [first["begin_s"], *(end_s for end_s, _ in first["curve"])]
    steps = [(begin_s, end_s - begin_s) for begin_s, end_s in pairwise(ends_s)]
    before = [step_s for begin_s, step_s in steps if begin_s + step_s <= fell_s]
    after = [(begin_s, step_s) for begin_s, step_s in steps if begin_s + step_s > fell_s]
    if len(before) < 2 or len(after) < 2 * FOLLOWED_STEPS:
        raise ValueError(f"{len(before)} steps before the fall and {len(after)} after it say nothing")
    after_s = statistics.median(step_s for _, step_s in after[-(len(after) // 3) :])
    before_s, network, gradient_bytes = statistics.median(before), network_of(record), first["gradient_bytes"]
    beside_links_s = max(0.0, before_s - bounds.links_s(network, "all_reduce", gradient_bytes))
    expected_s = beside_links_s + bounds.links_s(fallen(network), "all_reduce", gradient_bytes)
    follow_s = max(0.0, _followed_at_s(after, expected_s) - fell_s)
    return {"before_s": before_s, "after_s": after_s, "expected_s": expected_s, "follow_s": follow_s}


def _followed_at_s(steps: Sequence[tuple[float, float]], expected_s: float) -> float:
    """When the first steps in a row begin that are all about as quick as expected; the end where none are."""
    for place in range(len(steps) - FOLLOWED_STEPS + 1):
        row = steps[place : place + FOLLOWED_STEPS]
        if all(step_s <= FOLLOWED * expected_s for _, step_s in row):
            return row[0][0]
    return sum(steps[-1])


def loss_gap(record: Record, other: Record) -> float:
    """How far the losses of both are apart at most, over the steps that both made."""
    pairs = zip(record["ranks"][0]["curve"], other["ranks"][0]["curve"], strict=False)
    return max((abs(mine / theirs - 1) for (_, mine), (_, theirs) in pairs), default=0.0)


BY_KIND: Mapping[str, Callable[[Record], dict[str, float]]] = {
    "collective": collective,
    "urgent": urgent,
    "training": training,
    "falling": falling,
}


def network_of(record: Record) -> Network:
    """The network as it was measured on."""
    raw = dict(record["network"])
    for key in ("links_bits_per_s", "site_ranks"):
        raw[key] = tuple(raw[key])
    return Network(**raw)
