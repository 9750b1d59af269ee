"""What happened to a job, of its members' tapes: view after view, who came and left, and how its steps went on.

Times are by the members' own clocks: what is seen first counts. So hosts whose clocks differ by a second may show a
second more or less between two commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from transport.volatile.protocol.view import Member
from transport.volatile.record.tape_check import TapedCommit, TapedView, TapeFile, by_run


@dataclass(frozen=True)
class TapedEpoch:
    """A view, and what was committed in it.

    Args:
        run: of the job: it counts its views and steps anew.
        epoch: the view's number.
        at_s: when its first member entered it, in seconds since 1970.
        members: how many it has, learners with them. Where no tape has the view any more: how many committed in it.
        came, left: who is a member that was not in the view before, and the other way round.
        learning: who learns.
        first_step, last_step: what was committed in it; (0, 0) for nothing.
        steps_per_s: of its commits; None below three.
        without_commit_s: the longest time between two commits up to its last one, from the last one before it on. None
            where there are not two.
    """

    run: int
    epoch: int
    at_s: float
    members: int
    came: tuple[Member, ...]
    left: tuple[Member, ...]
    learning: tuple[Member, ...]
    first_step: int
    last_step: int
    steps_per_s: float | None
    without_commit_s: float | None


def history(tapes: Sequence[TapeFile]) -> tuple[TapedEpoch, ...]:
    """All views on the tapes, run after run, each in the order of its epochs."""
    found = [list(_of_run(run, some)) for run, some in by_run(tapes).items()]
    return tuple(epoch for one in sorted(found, key=lambda one: one[0].at_s if one else 0.0) for epoch in one)


def _of_run(run: int, tapes: Sequence[TapeFile]) -> Iterator[TapedEpoch]:
    views: dict[int, TapedView] = {}
    commits: dict[int, TapedCommit] = {}
    for entry in (entry for one in tapes for entry in one.entries):
        if isinstance(entry, TapedView):
            known = views.get(entry.epoch)
            views[entry.epoch] = entry if known is None or entry.at_s < known.at_s else known
        elif not entry.received:
            first = commits.get(entry.step)
            commits[entry.step] = entry if first is None or entry.at_s < first.at_s else first
    by_epoch: dict[int, list[TapedCommit]] = {}
    for step in sorted(commits):
        by_epoch.setdefault(commits[step].epoch, []).append(commits[step])
    before: frozenset[Member] = frozenset()
    last_s: float | None = None
    for epoch in sorted(views.keys() | by_epoch.keys()):
        view, steps = views.get(epoch), by_epoch.get(epoch, [])
        there = frozenset(_committed_in(epoch, tapes) if view is None else view.members)
        times_s = list(accumulate((one.at_s for one in steps), max))  # of clocks that differ
        since_s = times_s if last_s is None else [last_s, *(max(one, last_s) for one in times_s)]
        took_s = times_s[-1] - times_s[0] if len(times_s) > 2 else 0.0
        yield TapedEpoch(
            run=run,
            epoch=epoch,
            at_s=view.at_s if view is not None else times_s[0],
            members=len(there),
            came=tuple(sorted(there - before)),
            left=tuple(sorted(before - there)),
            learning=tuple(sorted(view.joining)) if view is not None else (),
            first_step=steps[0].step if steps else 0,
            last_step=steps[-1].step if steps else 0,
            steps_per_s=round((len(times_s) - 1) / took_s, 3) if took_s > 0 else None,
            without_commit_s=round(max(b - a for a, b in pairwise(since_s)), 3) if len(since_s) > 1 else None,
        )
        before, last_s = there, since_s[-1] if since_s else None


def _committed_in(epoch: int, tapes: Sequence[TapeFile]) -> Iterator[Member]:
    for one in tapes:
        if any(isinstance(entry, TapedCommit) and entry.epoch == epoch and not entry.received for entry in one.entries):
            yield one.member
