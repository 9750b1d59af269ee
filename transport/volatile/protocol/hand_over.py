"""What a member that leaves does first: it stays while somebody needs a state or result that nobody else will have.

Those are learners, and workers whose parts came too late for the last step: they have to fetch its result. Of all that
hold it and leave together, the first one stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from transport.volatile.protocol.commit import Phase, State
from transport.volatile.protocol.view import Member

STAY_S = 60.0
"""At most. Who leaves by a signal stays for half a second (`group.LEAVE_S`), and who is interrupted does not."""
HEAR_S = 0.5
"""Others that leave in this moment have said so by then: more than a bad round trip."""
ASK_S = 0.1
"""How often it looks, and asks those of whom it does not know."""


class HandOver:
    """Who needs what this member holds. For any thread."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._contributors: frozenset[Member] = frozenset()
        self._steps: dict[Member, int] = {}
        self._leaves_s: float | None = None

    def committed(self, contributors: Iterable[Member]) -> None:
        """These have made the last step, and hold its result."""
        self._contributors = frozenset(contributors)

    def holds(self, member: Member, step: int) -> None:
        """That one says that it holds everything up to `step`."""
        self._steps[member] = step

    @property
    def leaves(self) -> bool:
        """Whether this member is about to leave."""
        return self._leaves_s is not None

    def in_doubt(self, state: State) -> list[Member]:
        """Of whom this member does not know that they hold what it holds."""
        there = set(state.view.members) - state.lost - self._contributors - {self._member}
        return sorted(one for one in there if self._steps.get(one, -1) < state.committed)

    def needed_by(self, state: State, *, expects_somebody: bool) -> list[str]:
        """Whom to stay for, now that this member is about to leave.

        Args:
            state: what it knows of the others.
            expects_somebody: there are some who are about to learn.
        """
        now_s = time.monotonic()
        self._leaves_s = self._leaves_s or now_s
        view, there = state.view, set(state.view.members) - state.lost
        needs = sorted(there & {*view.joining, *self.in_doubt(state)})
        can_help = self._member in view.workers and state.phase not in (Phase.BEHIND, Phase.OUT)
        if not can_help or not (needs or expects_somebody):
            return []
        others = there.difference(needs, {self._member})
        if others and (min(others) < self._member or now_s >= self._leaves_s + HEAR_S):
            return []
        return [str(one) for one in needs] or ["somebody who joins"]
