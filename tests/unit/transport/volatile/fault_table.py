"""Faults of a volatile group by phase, and what the search over all courses of a small one finds to come of them.

`tools.docs_tables` writes it into the reference.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import commit_search as search

from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Phase, State
from transport.volatile.protocol.view import Member

WHEN = {
    "first": "reduces, as all others do",
    "behind": "reduces, others have the result",
    "prepared": "has the result",
    "ahead": "has committed, others have not",
    "frozen": "changes the view",
    "late": "is late for a step with a quorum",
    "learner": "learns",
    "always": "any",
}
KILLED, CUT = "is killed", "is cut off from another"


@dataclass(frozen=True)
class Fault:
    """What happened to a member, and the digest up to the step that was under way there, by its result of that time."""

    what: str
    when: str
    step: int
    digest: bytes


def fault(what: str, states: tuple[State, ...], place: int) -> Fault:
    """What it means that the member at `place` is lost now."""
    victim, others = states[place], [one for number, one in enumerate(states) if number != place]
    if victim.me in victim.view.joining:
        return _of_others("learner", what, others[0], others[0].view.workers)
    step = victim.committed + 1
    for one in others:
        chosen = commit.announced(one, step)
        if chosen and victim.me not in chosen.members and one.committed < step:
            return _of_others("late", what, one, chosen.members)
    digest = commit.chained(victim.digest, search._result(victim.view.epoch, step, victim.view.workers))
    if victim.phase is Phase.FROZEN:
        return Fault(what, "frozen", step, digest)
    if any(one.committed < victim.committed for one in others):
        return Fault(what, "ahead", victim.committed, victim.digest)
    if victim.phase is Phase.PREPARED:
        return Fault(what, "prepared", step, digest)
    holds = any(said.step == step for one in others for who, said in one.prepared if who == one.me)
    return Fault(what, "behind" if holds else "first", step, digest)


def _of_others(when: str, what: str, worker: State, contributors: tuple[Member, ...]) -> Fault:
    """One of a member that has no part in the step that is under way at `worker`."""
    step = worker.committed + 1
    return Fault(what, when, step, commit.chained(worker.digest, search._result(worker.view.epoch, step, contributors)))


def outcomes(start: search.World) -> dict[tuple[str, str], set[str]]:
    """What becomes of the step and of the members, by fault and phase: all that any course ends with."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    first: tuple[Fault | None, search.World] = (None, start)
    seen, todo = {first}, [first]
    while todo:
        known, world = todo.pop()
        moved = False
        for surely, after in search.following(world):
            moved |= surely
            now = known
            for place in after.crashed - world.crashed:
                now = fault(KILLED, world.states, place)
            for _, place in after.suspected - world.suspected:
                now = replace(fault(CUT, world.states, place), when="always")
            if (now, after) not in seen:
                seen.add((now, after))
                todo.append((now, after))
        if not moved and known is not None and known.step <= world.steps:
            done = (known.step, known.digest) in world.commits
            out = any(one.phase is Phase.OUT for n, one in enumerate(world.states) if n not in world.crashed)
            found[known.what, known.when].add("is committed" if done else "is done again")
            found[known.what, known.when].add("one is evicted" if out else "all living ones go on")
    return found


def rows() -> list[tuple[str, str, str]]:
    """A fault and the phase that it meets, what becomes of the step, and of the members."""
    killed = outcomes(search.first_world(3, steps=1, crashes=2))
    cut = outcomes(search.first_world(2, steps=2, suspicions=1))
    late = _only("late", outcomes(search.first_world(3, steps=1, crashes=1, quorum=2)))
    learner = _only("learner", outcomes(search.first_world(3, steps=1, crashes=1, learners=1)))
    return [
        (
            f"{what}: {WHEN[when]}",
            " or ".join(one for one in ("is committed", "is done again") if one in found),
            " or ".join(one for one in ("all living ones go on", "one is evicted") if one in found),
        )
        for what, when, found in (
            (*key, one) for key, one in sorted({**killed, **cut, **late, **learner}.items(), key=_place)
        )
    ]


def _only(when: str, found: dict[tuple[str, str], set[str]]) -> dict[tuple[str, str], set[str]]:
    return {key: one for key, one in found.items() if key[1] == when}


def _place(entry: tuple[tuple[str, str], set[str]]) -> int:
    return list(WHEN).index(entry[0][1])
