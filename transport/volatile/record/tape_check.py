"""Holds tapes of a job's members against each other: whether all commits agree and form one chain.

What has to hold, and is looked at:

- A step has one digest, whoever committed it. A digest covers all results up to its step, so equal ones mean an equal
  past.
- A member commits one step after the other: none is left out, none comes twice.
- An epoch has one view. A member enters views in the order of their epochs.
- A view begins with what was committed: nobody has committed a later step in an earlier epoch, and its base step has
  the digest with which that was committed.
- Who commits in a view is one of its members.

All of that holds for the members of one run: a job may begin anew, and steps count from 0 then.

Who learns (`joining`) begins with a state in place of a step, and may hear of the next view late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hive_qos.errors import ConfigurationError
from transport.volatile.protocol.view import MEMBERS_MAX, Member
from transport.volatile.record.tape import VERSION

FINDINGS_MAX = 100
"""Where everything differs, the first ones say it."""
LINE_BYTES_MAX = 64 * MEMBERS_MAX * 8
"""Of a view of all members that there may be, with long names."""


@dataclass(frozen=True)
class TapedView:
    """A view as a tape has it."""

    epoch: int
    members: tuple[Member, ...]
    joining: tuple[Member, ...]
    base_step: int
    digest: str
    at_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class TapedCommit:
    """A commit as a tape has it. `received`: the member was given the state after `step`, and has committed nothing."""

    step: int
    epoch: int
    digest: str
    received: bool = False
    at_s: float = field(default=0.0, compare=False)


@dataclass
class TapeFile:
    """What one file says. `step` is the last one that its member had committed before it began; `run` tells apart jobs
    of one name, and one from what it was before it began anew."""

    path: str
    job: str
    run: int
    member: Member
    step: int
    entries: list[TapedView | TapedCommit] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What the tapes say together.

    Args:
        members: of whom there are tapes.
        runs: how many there are: after a new beginning steps count from 0 again, and agree among themselves alone.
        first_step, last_step: of all commits; 0 where there is none.
        commits, views: how many different ones.
        findings: what is wrong, in words; () where all commits agree and form one chain.
    """

    members: tuple[Member, ...]
    runs: int
    first_step: int
    last_step: int
    commits: int
    views: int
    findings: tuple[str, ...]


def read(path: Path) -> list[TapeFile]:
    """A tape, and the file before it where there is one. What a killed member has begun to write is left out.

    Raises:
        ConfigurationError: there is none, or it is no tape; names the line.
    """
    before = Path(f"{path}.1")
    return [_read(one) for one in (before, path) if one == path or one.exists()]


def check(tapes: Sequence[TapeFile]) -> Verdict:
    """Hold tapes against each other.

    Raises:
        ConfigurationError: they are of different jobs.
    """
    jobs = sorted({one.job for one in tapes})
    if len(jobs) > 1:
        raise ConfigurationError("FILES", ", ".join(jobs), "these tapes are of several jobs; name those of one")
    runs = by_run(tapes)
    found = [_check_run(some) for some in runs.values()] or [_check_run(())]
    stepped = [one for one in found if one.commits] or found
    return Verdict(
        members=tuple(sorted({one.member for one in tapes})),
        runs=len(runs),
        first_step=min(one.first_step for one in stepped),
        last_step=max(one.last_step for one in stepped),
        commits=sum(one.commits for one in found),
        views=sum(one.views for one in found),
        findings=tuple(finding for one in found for finding in one.findings)[:FINDINGS_MAX],
    )


def by_run(tapes: Iterable[TapeFile]) -> dict[int, list[TapeFile]]:
    """The tapes of each run."""
    runs: dict[int, list[TapeFile]] = {}
    for one in tapes:
        runs.setdefault(one.run, []).append(one)
    return runs


def _check_run(tapes: Sequence[TapeFile]) -> Verdict:
    findings: list[str] = []
    for one in tapes:
        findings += _in_order(one)
    commits: dict[int, dict[str, list[Member]]] = {}
    views: dict[int, dict[TapedView, list[Member]]] = {}
    for one in tapes:
        for entry in one.entries:
            if isinstance(entry, TapedCommit):
                commits.setdefault(entry.step, {}).setdefault(entry.digest, []).append(one.member)
            else:
                views.setdefault(entry.epoch, {}).setdefault(entry, []).append(one.member)
    for step, digests in sorted(commits.items()):
        if len(digests) > 1:
            told = "; ".join(f"{digest[:8]}: {_names(who)}" for digest, who in sorted(digests.items()))
            findings.append(f"step {step} was committed with {len(digests)} digests ({told})")
    for epoch, found in sorted(views.items()):
        if len(found) > 1:
            told = "; ".join(f"{_names(view.members)}: {_names(who)}" for view, who in found.items())
            findings.append(f"epoch {epoch} has {len(found)} views ({told})")
    findings += _chain(tapes, commits, {epoch: next(iter(found)) for epoch, found in views.items()})
    return Verdict(
        members=tuple(sorted({one.member for one in tapes})),
        runs=1,
        first_step=min(commits, default=0),
        last_step=max(commits, default=0),
        commits=len(commits),
        views=len(views),
        findings=tuple(findings[:FINDINGS_MAX]),
    )


def _in_order(tape: TapeFile) -> Iterable[str]:
    """What is wrong with one tape by itself."""
    step, epoch = tape.step, 0
    for entry in tape.entries:
        if isinstance(entry, TapedCommit):
            if entry.step != step + 1 and not (entry.received and entry.step > step):
                yield f"{tape.member} committed step {entry.step} after step {step}"
            step = entry.step
        else:
            if entry.epoch <= epoch:
                yield f"{tape.member} entered epoch {entry.epoch} after epoch {epoch}"
            if entry.base_step < step:  # who is behind commits up to it first, one after the other
                yield f"{tape.member} entered epoch {entry.epoch}, which begins with step {entry.base_step}, at {step}"
            epoch = entry.epoch


def _chain(
    tapes: Sequence[TapeFile], commits: dict[int, dict[str, list[Member]]], views: dict[int, TapedView]
) -> Iterable[str]:
    """What is wrong between commits and views."""
    for epoch, view in sorted(views.items()):
        known = commits.get(view.base_step, {})
        if known and view.digest not in known:
            yield f"epoch {epoch} begins with step {view.base_step} as {view.digest[:8]}, which nobody committed"
    epochs = sorted(views)
    for one in tapes:
        for entry in one.entries:
            if not isinstance(entry, TapedCommit):
                continue
            within = views.get(entry.epoch)
            learns = within is not None and one.member in within.joining
            later = next((epoch for epoch in epochs if epoch > entry.epoch), None)
            if later is not None and not learns and entry.step > views[later].base_step:
                base = views[later].base_step
                yield f"{one.member} committed step {entry.step} in epoch {entry.epoch}; epoch {later} begins at {base}"
            if within is not None and one.member not in within.members:
                yield f"{one.member} committed step {entry.step} in epoch {entry.epoch}, of which it is no member"


def _names(members: Iterable[Member]) -> str:
    return ", ".join(sorted({one.name for one in members}))


def _time_of(fields: dict[str, object]) -> float:
    at_s = fields["at_s"]
    if not isinstance(at_s, int | float) or not 0 <= at_s < 1e11:
        raise ValueError(f"at_s is {at_s!r}, no time in seconds since 1970")
    return float(at_s)


def _read(path: Path) -> TapeFile:
    tape: TapeFile | None = None
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) >= LINE_BYTES_MAX:
                        raise ValueError("the line is too long")
                    break
                fields = json.loads(line)
                if tape is None:
                    if fields["tape"] != VERSION:
                        raise ValueError(f"version {fields['tape']} is not known here")
                    member = Member(str(fields["member"]), int(fields["incarnation"]))
                    run = int(fields.get("run", 0))  # of a tape from before there were runs
                    tape = TapeFile(str(path), str(fields["job"]), run, member, int(fields["step"]))
                elif "commit" in fields or "holds" in fields:
                    received = "holds" in fields
                    step = int(fields["holds" if received else "commit"])
                    epoch, digest, at_s = int(fields["epoch"]), str(fields["digest"]), _time_of(fields)
                    tape.entries.append(TapedCommit(step, epoch, digest, received, at_s))
                elif "view" in fields:
                    members, joining = (
                        tuple(Member(str(name), int(incarnation)) for name, incarnation in fields[key])
                        for key in ("members", "joining")
                    )
                    base_step, digest, at_s = int(fields["base_step"]), str(fields["digest"]), _time_of(fields)
                    tape.entries.append(TapedView(int(fields["view"]), members, joining, base_step, digest, at_s))
    except FileNotFoundError as error:
        raise ConfigurationError(str(path), None, "no such file; name tapes, as members write them") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigurationError(str(path), f"line {number}", f"not a line of a tape: {error}") from error
    if tape is None:
        raise ConfigurationError(str(path), "empty", "a tape begins with a line about its member")
    return tape
