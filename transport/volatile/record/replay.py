"""Replays the tapes of a volatile group's members: what happened, in order, and what contradicts itself.

- The epochs of a tape only grow, and a commit is of the epoch that the tape is in.
- A view has the same members on all tapes, a step the same digest and contributors.
- Contributors are workers of the view. No member commits a step twice.

Where all contributors of a step were lost at once, the others do it again. It has two digests then: one was lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import MsgspecError
from msgspec.json import Decoder

from hive_qos.errors import ConfigurationError
from transport.volatile.record.tape import Committed, Entered, Head, Who

HEAD_BYTES_MAX = 4096
_HEAD, _LINE = Decoder(Head), Decoder(Entered | Committed)


@dataclass
class _Run:
    """A job from its first member on: in the next one, epochs and steps count anew. Entries stand with FILE:LINE."""

    tapes: list[str] = field(default_factory=list)
    views: dict[int, tuple[Entered, str]] = field(default_factory=dict)
    commits: dict[int, tuple[Committed, str]] = field(default_factory=dict)
    apart_s: dict[int, float] = field(default_factory=dict)
    made: dict[Who, set[int]] = field(default_factory=dict)


def replay(paths: Iterable[Path]) -> dict[str, Any]:
    """The events of each run, and all violations, as a document of JSON.

    Raises:
        ConfigurationError: a file is no tape.
        OSError: it cannot be read.
    """
    runs: dict[tuple[str, int], _Run] = {}
    found = [one for path in dict.fromkeys(paths) for one in _read(path, runs)]
    told: list[dict[str, Any]] = []
    for (job, number), run in runs.items():
        told.append({"job": job, "run": number, "tapes": run.tapes, "events": list(_events(run))})
    told.sort(key=lambda one: one["events"][0]["at_s"] if one["events"] else 0.0)
    return {"schema": 1, "runs": told, "violations": [{"where": where, "what": what} for where, what in found]}


def _read(path: Path, runs: dict[tuple[str, int], _Run]) -> Iterator[tuple[str, str]]:
    """Add a tape to its run; where it contradicts itself or those before it, and how."""
    with path.open("rb") as file:
        head = _head(path, file.readline(HEAD_BYTES_MAX))
        run = runs.setdefault((head.job, head.run), _Run())
        run.tapes.append(str(path))
        made = run.made.setdefault(head.member, set())
        epoch: int | None = 0  # None: not known
        last_s: float | None = None
        for number, line in enumerate(file, 2):
            where = f"{path}:{number}"
            try:
                entry = _LINE.decode(line)
            except (MsgspecError, ValueError, RecursionError) as error:
                if line.endswith(b"\n"):  # otherwise the member was killed as it wrote
                    yield where, f"no line of a tape: {error}"
                    epoch = None
                continue
            if isinstance(entry, Entered):
                if epoch is not None and entry.epoch <= epoch:
                    yield where, f"epoch {entry.epoch} comes after epoch {epoch}"
                epoch = entry.epoch
                view, there = run.views.setdefault(epoch, (entry, where))
                if (view.members, view.joining) != (entry.members, entry.joining):
                    yield where, f"epoch {epoch} has {_shown(entry)}; at {there} {_shown(view)}"
                continue
            step, by = entry.step, entry.contributors
            if epoch is not None and entry.epoch != epoch:
                yield where, f"step {step} is of epoch {entry.epoch}, and comes in epoch {epoch}"
            if step in made:
                yield where, f"{_names([head.member])} commits step {step} again"
            made.add(step)
            known, there = run.commits.setdefault(step, (entry, where))
            if entry.digest != known.digest:
                yield where, f"step {step} has digest {entry.digest[:16]}; at {there} {known.digest[:16]}"
            if by is not None:
                if known.contributors is None:
                    known, there = run.commits[step] = entry, where
                if by != known.contributors:
                    yield where, f"step {step} is of {_names(by)}; at {there} of {_names(known.contributors or ())}"
                if known is entry and entry.epoch in run.views:
                    view, there = run.views[entry.epoch]
                    if outside := set(by).difference(set(view.members).difference(view.joining)):
                        yield where, f"step {step} is of {_names(outside)}, no worker of epoch {entry.epoch} at {there}"
                if last_s is not None:
                    run.apart_s[step] = max(run.apart_s.get(step, 0.0), round(entry.monotonic_s - last_s, 3))
            last_s = entry.monotonic_s


def _head(path: Path, line: bytes) -> Head:
    try:
        return _HEAD.decode(line)
    except (MsgspecError, ValueError, RecursionError) as error:
        reason = f"no tape, as HIVE_TAPE has members write them: {error}" if line else "empty: its member wrote nothing"
        raise ConfigurationError(f"{path}:1", None, f"{reason}; leave it out") from error


def _events(run: _Run) -> Iterator[dict[str, Any]]:
    """Views in the order of their epochs, each with the steps committed in it: clocks of hosts may differ."""
    steps: dict[int, list[int]] = {epoch: [] for epoch in run.views}
    for step, (entry, _) in sorted(run.commits.items()):
        steps.setdefault(entry.epoch, []).append(step)
    before: set[Who] = set()
    for epoch in sorted(steps):
        if epoch in run.views:
            view, _ = run.views[epoch]
            now = set(view.members)
            who = {"members": now, "joining": view.joining, "went": before - now, "came": now - before}
            told = {key: sorted(name for name, _ in some) for key, some in who.items()}
            yield {"kind": "view", "epoch": epoch, "at_s": view.at_s, **told}
            before = now
        for _, chunk in itertools.groupby(enumerate(steps[epoch]), key=lambda one: one[1] - one[0]):  # without a gap
            some = [run.commits[step][0] for _, step in chunk]
            counts = {len(one.contributors) for one in some if one.contributors is not None}
            yield {
                "kind": "commits",
                "epoch": epoch,
                "at_s": some[0].at_s,
                "until_s": some[-1].at_s,
                "steps": [some[0].step, some[-1].step],
                "contributors": [min(counts), max(counts)] if counts else None,
                "done_again": sum(one.attempt > 1 for one in some),
                "apart_s_max": max(run.apart_s.get(one.step, 0.0) for one in some),
            }


def _shown(view: Entered) -> str:
    return _names(view.members) + (f", of whom {_names(view.joining)} learn" if view.joining else "")


def _names(members: Iterable[Who]) -> str:
    return ", ".join(f"{name}.{incarnation:x}" for name, incarnation in sorted(members)) or "nobody"
