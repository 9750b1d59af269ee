"""Whom the first worker admits, and when: it has all connect to the candidates, and then lets those in. Pure.

Connecting is beside the steps, which go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from transport.volatile.protocol.view import Member, View

READ_MAX, READ_BACK_MAX = 16, 256
"""Requests are read so many at a time, while nothing else is heard. Of those that a new first worker finds, the newest
are read: whoever still waits asks anew each few seconds."""
READ_S = 0.5
"""And no longer than that, at one look."""
LOOK_S = 0.5
"""How often the first worker looks who asks to join: one small request."""
BEAT_S = 1.0
"""How often who waits says in the register that it lives."""
DOUBT_S = 1.0
"""Connections that are not there by then may wait for a process that has died: beats are read from then on."""
SILENT_S = 3.0
"""A candidate whose beat has stopped for so long is given up: two beats were missed, and the store may be slow."""
HOLE_S = 10.0
"""A request that is not written so long after its number was taken never will be: a store's calls end in that time."""


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
    """Who is new in the next view; `asked` as in `commit.Wish`."""

    joining: frozenset[Member]
    asked: int


class Admission:
    """What one first worker knows of those who ask to join. Others keep one, too, which they do not use."""

    def __init__(self) -> None:
        self._last = 0
        self._holes: dict[int, float] = {}
        self._candidates: dict[Member, None] = {}
        self._failed: set[Member] = set()
        self._named: set[Member] = set()
        self._beats: dict[Member, tuple[tuple[int, int] | None, float]] = {}
        self._read_s: dict[Member, float] = {}
        self._connected: dict[int, set[Member]] = {}
        self._planned_s: float | None = None
        self._lost: tuple[int, frozenset[Member]] = (0, frozenset())

    @property
    def expects_somebody(self) -> bool:
        """Whether anybody is about to be let in."""
        return bool(self._candidates)

    # The queue of requests.

    def to_read(self, view: View, last: int) -> list[int]:
        """Which requests to read now, where the newest is number `last`: new ones, and those not written yet."""
        first = max(self._last, view.asked, last - READ_BACK_MAX) + 1
        return [*sorted(self._holes), *range(first, min(first + READ_MAX, last + 1))]

    def hear(self, found: Mapping[int, Member | None], view: View, now_s: float) -> None:
        """Take in what was read, by number: who it is; None where nothing is written.

        A process takes a number, then writes. It may have died between the two, so nobody behind it waits for it.
        """
        for number, member in sorted(found.items()):
            self._last = max(self._last, number)
            if member is None:
                if now_s - self._holes.setdefault(number, now_s) >= HOLE_S:
                    del self._holes[number]
                continue
            self._holes.pop(number, None)
            if member not in view.members:
                self.forget([one for one in self._candidates if one.name == member.name and one != member])
                self._candidates[member] = None

    @property
    def asked(self) -> int:
        """Up to which number nobody need look at the requests again."""
        return min(self._holes) - 1 if self._holes else self._last

    # Who is given up.

    def forget(self, members: Iterable[Member]) -> None:
        """They are no candidates any more. Who lives and is in no view asks again."""
        for one in members:
            self._candidates.pop(one, None)
            self._beats.pop(one, None)
            self._read_s.pop(one, None)
            self._failed.discard(one)
            self._named.discard(one)

    def doubted(self, now_s: float) -> list[Member]:
        """Whose beats to read: candidates whose connections are not there soon, who was read longest ago first."""
        slow = self._planned_s is not None and now_s - self._planned_s >= DOUBT_S
        return sorted(self._candidates, key=lambda one: self._read_s.get(one, 0.0)) if slow else []

    def beat(self, member: Member, count: tuple[int, int] | None, now_s: float) -> bool:
        """What its beat is now; whether that candidate is given up, as its beat has stopped."""
        self._read_s[member] = now_s
        before, since_s = self._beats.setdefault(member, (count, now_s))
        if count != before:
            self._beats[member] = (count, now_s)
        elif now_s - since_s >= SILENT_S:
            self.forget([member])
            return True
        return False

    # Connections.

    def plan(self, number: int, now_s: float) -> None:
        """A plan was made, and nobody else's counts."""
        self._connected = {number: set()}
        self._planned_s = now_s

    def connected(self, number: int, member: Member) -> None:
        """That member has the connections of that number."""
        self._connected.setdefault(number, set()).add(member)
        for old in sorted(self._connected)[:-2]:
            del self._connected[old]

    def have(self, number: int) -> frozenset[Member]:
        """Who has said that it has the connections of that number."""
        return frozenset(self._connected.get(number, ()))

    def next(
        self,
        living: frozenset[Member],
        *,
        plan: Plan | None,
        newest: int,
        newest_lost: Collection[Member],
        now_s: float,
    ) -> MakePlan | LetIn | None:
        """What to do now.

        Args:
            living: the view's members but those that are lost.
            plan: the last one, unless it was given up.
            newest, newest_lost: the newest mesh that the first worker has, and who of it is lost.
        """
        late = plan is not None and now_s > plan.give_up_s
        if plan is not None and late and plan.members <= living | self._candidates.keys():
            self._fail(plan.members)
        # Once: one that could not connect to all others has left these connections, lives, and asks again.
        known = self._lost[1] if self._lost[0] == newest else frozenset()
        self._lost = newest, frozenset(newest_lost)
        self.forget(self._lost[1] - known)
        if not self._candidates:
            self._planned_s = None
            return None
        wanted = living | self._chosen()
        there = self.have(newest).difference(newest_lost)  # one that has replaced these connections is lost there
        joining = there & self._candidates.keys()
        stands = plan is not None and newest >= plan.number
        mates = plan.members & wanted if plan is not None and stands else frozenset()
        if joining and there >= living | mates:  # who has asked since then is connected next
            self._named |= joining
            self._planned_s = None
            return LetIn(joining, self.asked)
        if plan is None or late:
            return MakePlan(wanted)
        in_vain = not plan.members <= wanted  # it waits for one that was given up, or that others need not wait for
        return MakePlan(wanted) if (not wanted <= plan.members if stands else in_vain) else None

    def _fail(self, members: Iterable[Member]) -> None:
        """Those were not connected in time, and one of them may never be: they are tried later, and one by one."""
        for one in members:
            if one in self._candidates and one not in self._named:
                self._candidates[one] = self._candidates.pop(one)  # behind the others
                self._failed.add(one)

    def _chosen(self) -> frozenset[Member]:
        """The candidates to connect to: all that have not failed, or the first one."""
        fresh = frozenset(self._candidates.keys() - self._failed)
        return fresh if fresh - self._named else fresh | frozenset(list(self._candidates)[:1])
