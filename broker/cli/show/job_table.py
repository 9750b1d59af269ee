"""The group of a job on a screen of 80 columns, for `hive-qos job`. Pure.

Who is late follows from who waits for whom: somebody for whom others wait, and who waits for nobody that waits as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from broker.cli.show.screen import Note, Row, items, line, name_of, number, rate, size, span

LINKS_SHOWN = 30
"""All links between six members; of more those with the longest round trips."""
FINE_S = 0.5
"""What is waited for shorter than this is a step as it should be."""
COMMITS_SHOWN = 3
"""Members may be a step apart; one more shows that they agreed before."""


def render(document: Mapping[str, Any]) -> RenderableType:
    """One group of the job after the other."""
    parts: list[RenderableType] = []
    for group in items(document, "groups"):
        if parts:
            parts.append(Text())
        parts += _group(name_of(document.get("job")), group)
    return Group(*parts)


def _group(job: str, group: Mapping[str, Any]) -> Iterator[RenderableType]:
    members = sorted(items(group, "members"), key=lambda one: number(one.get("rank")))
    names = {str(one.get("rank")): _name(one) for one in members}
    silent = items(group, "silent")
    yield _head(job, members, len(silent))
    for one in silent:
        who = name_of(one.get("member", f"rank {one.get('rank', '?')}"))
        yield Note(f"{who}: {name_of(one.get('why'))}", style="bold red")
    for told in (*_waiting(members), *late(members, names)):
        yield Note(told, style="bold")
    yield line("member", "step", "waits", "sent", "received", "saved")
    for one in members:
        yield _member(one)
    yield from _beside_ddp(members)
    yield Text()
    yield from _links(members, names)
    yield from _commits(members)


def _head(job: str, members: Sequence[Mapping[str, Any]], silent: int) -> Text:
    total = len(members) + silent
    what = "member" if any(_volatile(one) for one in members) else "rank"
    text = f"{total} {what}{'' if total == 1 else 's'}, "
    newest = max((_volatile(one) for one in members), key=lambda one: number(one.get("epoch")), default={})
    if newest:
        since = span(number(newest.get("epoch_s")))
        text += f"epoch {name_of(newest.get('epoch'))} for {since}, step {name_of(newest.get('step'))}, "
    answers = f"{len(members)} answer" if silent else "all answer"
    return Text.assemble((job, "bold"), f": {text}", (answers, "bold red" if silent else "green"))


@dataclass(frozen=True)
class Wait:
    """A member, `by`, waits for another, `of`: both by rank. `called`: that one has begun the same operation."""

    by: str
    of: str
    what: str
    since_s: float
    called: bool


def waits(members: Sequence[Mapping[str, Any]]) -> list[Wait]:
    """Who waits for whom, for longer than a step takes."""
    called = {
        (str(one.get("rank")), str(group.get("name"))): number(group.get("called"))
        for one in members
        for group in items(one, "groups")
    }
    found = []
    for one in members:
        for wait in items(one, "waits"):
            ranks, since_s = wait.get("for"), number(wait.get("since_s"))
            for of in ranks if isinstance(ranks, list) and since_s > FINE_S else []:
                begun = called.get((str(of), str(wait.get("group"))), math.inf)
                has = begun > number(wait.get("number"))
                found.append(Wait(str(one.get("rank")), str(of), name_of(wait.get("what")), since_s, has))
    return found


def late(members: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[str]:
    """Who is waited for, by whom, since when, and why: one sentence for each that is late."""
    known = {str(one.get("rank")): one for one in members}
    found = waits(members)
    waiting = {one.by for one in found}
    blamed = {one.of for one in found if not one.called or one.of not in known or one.of not in waiting}
    for of in sorted(blamed):
        mine = [one for one in found if one.of == of]
        longest = max(mine, key=lambda one: one.since_s)
        by = sorted({names.get(one.by, "?") for one in mine})
        who = f"{', '.join(by)} {'waits' if len(by) == 1 else 'wait'} for {names.get(of, f'rank {of}')}"
        if of not in known:
            why = "it does not answer"
        elif longest.called:
            why = "it has begun that too: look at the link between them"
        else:
            why = f"it has not begun that, nor anything for {number(known[of].get('idle_s')):.1f} s"
        yield f"{who} for {longest.since_s:.1f} s in {longest.what}: {why}"
    if found and not blamed:
        longest = max(found, key=lambda one: one.since_s)
        yield f"all have begun {longest.what}, and wait for {longest.since_s:.1f} s: look at the links"


def _waiting(members: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What members of a volatile group wait for before their next step: one sentence for all that say the same."""
    found: dict[str, list[str]] = {}
    for one in members:
        if _volatile(one).get("waits_for"):
            found.setdefault(name_of(_volatile(one)["waits_for"]), []).append(_name(one))
    yield from (f"{', '.join(who)}: {what}" for what, who in found.items())


def _member(one: Mapping[str, Any]) -> Row:
    state = _volatile(one)
    step = name_of(state.get("step")) if state else str(_called(one))
    waits = items(one, "waits")
    longest = max((number(wait.get("since_s")) for wait in waits), default=0.0)
    told = f"{longest:.1f} s" if waits else "-"
    sent_bytes = number(one.get("sent_bytes")) + number(one.get("shared_bytes"))
    received_bytes, saved_bytes = number(one.get("received_bytes")), one.get("saved_bytes")
    if "sent_bytes" in state:  # since it joined, over all of its connections
        sent_bytes, received_bytes = number(state.get("sent_bytes")), number(state.get("received_bytes"))
    if "ddp_bytes" in state:
        saved_bytes = max(number(state.get("ddp_bytes")) - sent_bytes, 0.0)
    cells = (step, told, size(sent_bytes), size(received_bytes), size(saved_bytes))
    row = line(_name(one), *cells, style="bold")
    if state and state.get("phase") not in ("reducing", "prepared"):
        return Row(row.name, row.cells, row.first, tail=name_of(state.get("phase")), style="bold red")
    return row


def _beside_ddp(members: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """What members that meet once in many steps have sent, beside what DDP would have sent for these steps."""
    counted = [state for one in members if "ddp_bytes" in (state := _volatile(one))]
    if counted:
        sent, ddp = (sum(number(one.get(key)) for one in counted) for key in ("sent_bytes", "ddp_bytes"))
        yield Note(f"all sent {size(sent)} since they joined; DDP would have sent {size(ddp)}")


def _links(members: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[RenderableType]:
    found = [(one.get("rank"), link) for one in members for link in items(one, "links")]
    if not found:
        return
    shown = found
    if len(found) > LINKS_SHOWN:
        shown = sorted(found, key=lambda one: -number(one[1].get("rtt_s")))[:LINKS_SHOWN]
    yield line("from > to", "rate", "round trip", "loss", "sent")
    for rank, link in shown:
        far = link.get("rank")
        name = f"{names.get(str(rank), '?')} > {names.get(str(far), f'rank {name_of(far)}')}"
        idle = "" if not link.get("application_limited") else "≥"  # it had nothing more to send
        measured = link.get("rate_bits_per_s") or None  # 0 where nothing was: shared memory, or small messages alone
        yield line(
            name,
            (idle if measured else "") + rate(measured),
            f"{1000 * number(link.get('rtt_s')):.3g} ms",
            f"{100 * number(link.get('loss')):.2g} %",
            size(link.get("sent_bytes")),
        )
    if len(found) > len(shown):
        yield Note(f"and {len(found) - len(shown):,} more with shorter round trips: hive-qos job --json")


def _commits(members: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """The last commits, and whether members have different digests of one."""
    found: dict[int, dict[str, list[str]]] = {}
    for one in members:
        for commit in items(_volatile(one), "commits"):
            step, digest = int(number(commit.get("step"))), name_of(commit.get("digest"))
            found.setdefault(step, {}).setdefault(digest, []).append(_name(one))
    if not found:
        return
    yield Text()
    for step, digests in sorted(found.items())[-COMMITS_SHOWN:]:
        told = "; ".join(f"{digest[:16]} on {', '.join(who)}" for digest, who in sorted(digests.items()))
        yield Note(f"step {step}: {told}", style="bold red" if len(digests) > 1 else "")


def _volatile(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found = one.get("volatile")
    return found if isinstance(found, Mapping) else {}


def _called(one: Mapping[str, Any]) -> int:
    """How many operations of its first group a rank has called: the group of all, which is the oldest."""
    groups = items(one, "groups")
    return int(number(groups[0].get("called"))) if groups else 0


def _name(one: Mapping[str, Any]) -> str:
    member = _volatile(one).get("member")
    return name_of(member) if member is not None else f"rank {name_of(one.get('rank'))}"
