"""Whom the first worker admits, and when: it has all connect to the candidates, and then lets those in. Pure.

Connecting is beside the steps, which go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transport.volatile.view import Member, View

LOOK_S = 0.5
"""How often the first worker looks who asks to join: one small request."""


@dataclass(frozen=True)
class Plan:
    """Connections that a member makes, or has made, by the word of a first worker."""

    number: int
    members: frozenset[Member]
    give_up_s: float


@dataclass(frozen=True)
class MakePlan:
    """All of `members` are to connect to each other."""

    members: frozenset[Member]


@dataclass(frozen=True)
class LetIn:
    """Who is new in the next view; `asked` and `pause` as in `commit.Wish`."""

    joining: frozenset[Member]
    asked: int
    pause: bool


class Admission:
    """What one first worker knows of those who ask to join. Others keep one, too, which they do not use."""

    def __init__(self) -> None:
        self.asked = 0
        """How many requests to join were looked at."""
        self._candidates: dict[Member, bool] = {}
        self._connected: dict[int, set[Member]] = {}

    @property
    def expects_somebody(self) -> bool:
        """Whether anybody is about to be let in."""
        return bool(self._candidates)

    def hear(self, asked: int, found: Mapping[Member, bool], view: View) -> None:
        """Take in the requests up to number `asked`: who it is, and whether it can follow."""
        self.asked = asked
        self._candidates.update({one: follows for one, follows in found.items() if one not in view.members})

    def forget(self, members: Iterable[Member]) -> None:
        """They are no candidates any more. Who lives and is in no view asks again."""
        for one in members:
            self._candidates.pop(one, None)

    def plan(self, number: int) -> None:
        """A plan was made, and nobody else's counts."""
        self._connected = {number: set()}

    def connected(self, number: int, member: Member) -> None:
        """That member has the connections of that number."""
        self._connected.setdefault(number, set()).add(member)
        for old in sorted(self._connected)[:-2]:
            del self._connected[old]

    def next(
        self,
        living: frozenset[Member],
        *,
        plan: Plan | None,
        newest: int,
        newest_members: Iterable[Member],
        newest_lost: Iterable[Member],
        now_s: float,
    ) -> MakePlan | LetIn | None:
        """What to do now.

        Args:
            living: the view's members but those that are lost.
            plan: the last one, unless it was given up.
            newest, newest_members, newest_lost: the newest mesh that the first worker has, and who of it is lost.
        """
        late = plan is not None and now_s > plan.give_up_s
        if plan is not None and newest < plan.number and late:
            self.forget(plan.members)
        self.forget(newest_lost)
        if not self._candidates:
            return None
        wanted = living | self._candidates.keys()
        if self._connected.get(newest, set()) >= wanted:
            joining = frozenset(self._candidates) & frozenset(newest_members)
            return LetIn(joining, self.asked, pause=not all(self._candidates[one] for one in joining))
        if plan is None or late or (newest >= plan.number and not wanted <= plan.members):
            return MakePlan(wanted)
        return None
