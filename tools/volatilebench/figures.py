"""Every figure, computed from raw records alone: pure functions.

Definitions
- loss: on text that nobody trains on, of the parameters that were kept after a meeting (DDP: after as many steps).
- A curve has a point for each of them: tokens of all workers so far, seconds since all had joined, bytes that all
  hosts' interfaces have sent, and the loss.
- end_loss: of a curve's last point. same_loss: at the last number of tokens that the reference's curve has, too,
  divided by the reference's there: above 1 is worse. seconds, sent_bytes: at that number of tokens.
- goodput: tokens of committed steps from the begin to the end, divided by what the live members could have trained at
  the undisturbed rate (up to its last commit). A member is live where its process is there, its link is up and the
  register can be reached. A step that torchrun did twice counts once.
- loss_gap: the loss at the last commit under churn, divided by the undisturbed one after as many tokens, less 1.
- diverged: commits of which two members wrote down different digests or weights.
- anew: how often the members began a new run, as all who held the state were lost. Only the last run's commits count
  for tokens, loss and longest_s.
- longest_s: the longest time between two commits. join_s: the median from asking to join to being a member, of those
  that came back.
- fetching: median of the steps that overlap a fetch, divided by the median step without storage and joiner. mean: of
  all those steps' time, the same. storage: its bytes through the router in the block by its guarantee.
- A figure of a cell is the median over its repetitions, with the smallest and the largest.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from tools.measure.series import Series
from tools.volatilebench.schedule import live_s

Record: TypeAlias = Mapping[str, Any]
GUARANTEE = 0.2
"""Of the link: storage's in the broker's benchmark."""


class Point(NamedTuple):
    """Of a curve."""

    tokens: float
    seconds: float
    sent_bytes: float
    loss: float


def curve(record: Record) -> list[Point]:
    """Of one training of `loss`.

    Raises:
        ValueError: nothing was kept.
    """
    lines, found = record["lines"], []
    begin_s = max(each[0]["t_s"] for each in lines.values())
    sent = [
        Series(tuple(line["t_s"] for line in each), tuple(line["sent_bytes"] - each[0]["sent_bytes"] for line in each))
        for each in lines.values()
    ]
    made = [
        Series(tuple(line["t_s"] for line in each), tuple(line.get("step", 0) for line in each))
        for each in lines.values()
    ]
    for line in sorted(_kept(lines), key=lambda line: float(line["t_s"])):
        done = line["step"] * len(lines) if record["waits"] else sum(each.at(line["t_s"]) for each in made)
        tokens = done * record["tokens"]
        sent_bytes = sum(one.at(line["t_s"]) for one in sent)
        found.append(Point(tokens, line["t_s"] - begin_s, sent_bytes, record["losses"][line["kept"]]))
    if not found:
        raise ValueError("no parameters were kept")
    return found


def steps(record: Record) -> int:
    """Inner steps of all workers together."""
    return sum(max(line.get("step", 0) for line in each) for each in record["lines"].values())


def timeline(record: Record) -> list[tuple[float, int]]:
    """Seconds and members of each commit."""
    return sorted((t_s - record["begin_s"], members) for t_s, members in _commits(record).values())


def _kept(lines: Mapping[str, Sequence[Record]]) -> Iterable[Record]:
    return (line for each in lines.values() for line in each if "kept" in line)


def beside(mine: Sequence[Point], reference: Sequence[Point] | None) -> dict[str, float]:
    """The figures of a training beside the reference's of the same task, network and seed; without one, of its end."""
    ends = {"end_loss": mine[-1].loss, "end_tokens": mine[-1].tokens}
    if reference is None:
        return ends
    last = min(mine[-1].tokens, reference[-1].tokens)
    here, there = (
        Series(tuple(p.tokens for p in each), tuple(p.loss for p in each)).at(last) for each in (mine, reference)
    )
    at = next(point for point in mine if point.tokens >= last)
    reached_s = next((point.seconds for point in mine if point.loss <= there), None)
    found = {"same_loss": here / there, "seconds": at.seconds, "sent_bytes": at.sent_bytes}
    return found | ends | ({} if reached_s is None else {"reached_s": reached_s})


def churn(record: Record, undisturbed: Record) -> dict[str, float]:
    """The figures of a run under churn, beside the same program's undisturbed one."""
    ranks = len(record["network"]["links_bits_per_s"])
    last_s = max(at_s for at_s, _ in timeline(undisturbed) if at_s <= undisturbed["seconds"])
    rate = committed_tokens(undisturbed) / (ranks * last_s)
    tokens, seconds = committed_tokens(record), record["seconds"]
    live = live_s(record["outages"], ranks, seconds)
    found = {"goodput": tokens / (rate * live), "rate": rate, "tokens": tokens}
    found["failed"] = float(len(record["missing"]))
    ends_s = [record["begin_s"], *sorted({t_s for t_s, _ in _commits(record).values()}), record["begin_s"] + seconds]
    found["longest_s"] = max(after - before for before, after in pairwise(ends_s))
    joined = [line for each in record["lines"].values() for line in each if "asked_s" in line]
    if back := [line["t_s"] - line["asked_s"] for line in joined if line["asked_s"] > record["begin_s"]]:
        found["join_s"] = statistics.median(back)
    if record["losses"]:
        found["diverged"] = float(len(diverged(record)))
        found["anew"] = float(len({run for run, _ in _told(record)}) - 1)
        found["compared"] = float(len(_told(record)))
        found["loss_gap"] = loss_gap(record, undisturbed)
    return found


def committed_tokens(record: Record) -> float:
    """Tokens of the steps that count, until the end of the run."""
    end_s = record["begin_s"] + record["seconds"]
    meetings = [members for t_s, members in _commits(record).values() if record["begin_s"] < t_s <= end_s]
    return float(sum(meetings) * record["every"] * record["tokens"])


def _commits(record: Record) -> dict[int, tuple[float, int]]:
    """When each commit of the last run (of torchrun: checkpoint) was made last, and of how many."""
    found: dict[int, tuple[float, int]] = {}
    run = _last_run(record)
    for line in sorted((one for each in record["lines"].values() for one in each), key=lambda one: float(one["t_s"])):
        if "commit" in line and _run(line) == run:
            found[line["commit"]] = line["t_s"], len(line["members"])
        elif "world" in line and "step" in line:
            found[line["step"]] = line["t_s"], line["world"]
    return found


def _run(line: Record) -> int:
    """Whose commit it is; records of before runs were written down have one."""
    return int(line.get("run", 0))


def _last_run(record: Record) -> int:
    lines = [line for each in record["lines"].values() for line in each if "commit" in line]
    return _run(max(lines, key=lambda line: float(line["t_s"]))) if lines else 0


def _told(record: Record) -> dict[tuple[int, int], set[tuple[str, str]]]:
    """Digest and weights that members wrote down of each run's commit."""
    found: dict[tuple[int, int], set[tuple[str, str]]] = {}
    for each in record["lines"].values():
        for line in each:
            if "commit" in line:
                found.setdefault((_run(line), line["commit"]), set()).add((line["digest"], line["weights"]))
    return found


def diverged(record: Record) -> list[tuple[int, int]]:
    """Commits, with their runs, after which two members held different bits."""
    return sorted(commit for commit, told in _told(record).items() if len(told) > 1)


def loss_gap(record: Record, undisturbed: Record) -> float:
    """How much worse the last loss under churn is than the undisturbed one after as many tokens."""
    mine, other = _losses(record), _losses(undisturbed)
    tokens, loss = mine[-1]
    return loss / Series(tuple(t for t, _ in other), tuple(each for _, each in other)).at(tokens) - 1


def _losses(record: Record) -> list[tuple[float, float]]:
    """Committed tokens and loss of each snapshot."""
    commits = _commits(record)
    numbers = sorted(commits)
    sums, total = [], 0.0
    for number in numbers:
        total += commits[number][1] * record["every"] * record["tokens"]
        sums.append(total)
    run = _last_run(record)
    kept = sorted((one for one in _kept(record["lines"]) if _run(one) == run), key=lambda line: int(line["commit"]))
    found = {sums[bisect.bisect_left(numbers, line["commit"])]: record["losses"][line["kept"]] for line in kept}
    if not found:
        raise ValueError("no parameters were kept")
    return sorted(found.items())


def joiner(record: Record, idle: Record) -> dict[str, float]:
    """The figures of one block of `joiner`, beside the one without storage and joiner."""
    idle_s = statistics.median(_step_s(step) for step in idle["steps"])
    steps = record["steps"]
    if record["joining"]:
        steps = [step for step in steps if any(_overlaps(step, one) for one in record["joins"])]
    if not steps:
        raise ValueError("no step overlaps a fetch")
    took_s = [_step_s(step) for step in steps]
    found = {"step": statistics.median(took_s) / idle_s, "mean": statistics.mean(took_s) / idle_s}
    found |= {"longest": max(took_s) / idle_s, "idle_s": idle_s}
    column, interface = record["counter"]
    samples = record["samples"]
    counted = Series(
        tuple(sample["t_s"] for sample in samples), tuple(sample["interfaces"][interface][column] for sample in samples)
    )
    interval = (record["begin_s"], record["end_s"])
    storage = 8 * counted.delta(interval) / (interval[1] - interval[0])
    if record["storage"]:
        found["storage"] = storage / (GUARANTEE * record["rate_bits_per_s"])
    if record["joins"]:
        found["fetch_s"] = statistics.median(one["joined_s"] - one["asked_s"] for one in record["joins"])
    return found


def _step_s(step: Record) -> float:
    return float(step["end_s"] - step["begin_s"])


def _overlaps(step: Record, join: Record) -> bool:
    return bool(step["end_s"] > join["asked_s"] and step["begin_s"] < join["joined_s"])
