"""When the next burst's begin or end is to be expected, by what each session has done so far. No clock.

The rhythm of ticks alone goes by it (`broker.daemon.tick_scheduler`), never a decision: that has a forecast of its own,
which has to prove itself (`broker.law.bursts.forecast`).
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK_S = 0.01
"""How late an event may be and still be expected: a busy scheduler. Beyond, it is not waited for."""


@dataclass
class _Habit:
    step: int
    began_s: float
    next_s: float | None
    lasted_s: float | None = None
    under_way: bool = True

    def expected_s(self) -> float | None:
        """When its burst ends, as its last one did; or when the next begins, as it said."""
        if not self.under_way:
            return self.next_s
        return None if self.lasted_s is None else self.began_s + self.lasted_s


class Habits:
    """Of the sessions that announce; one that is gone is forgotten."""

    def __init__(self) -> None:
        self._habits: dict[str, _Habit] = {}

    def began(self, session: str, *, step: int, next_s: float | None, now_s: float) -> None:
        """A burst was announced, or more of one that is under way. `next_s` from now its job expects the next."""
        before = self._habits.get(session)
        at_s = None if next_s is None else now_s + next_s
        if before is not None and before.under_way and before.step == step:
            before.next_s = at_s
            return
        self._habits[session] = _Habit(step, now_s, at_s, before.lasted_s if before is not None else None)

    def ended(self, session: str, *, step: int, now_s: float) -> None:
        """A burst is over."""
        habit = self._habits.get(session)
        if habit is not None and habit.under_way and habit.step == step:
            habit.lasted_s, habit.under_way = now_s - habit.began_s, False

    def forget(self, session: str) -> None:
        """The session is gone."""
        self._habits.pop(session, None)

    def expected_s(self, *, now_s: float) -> float | None:
        """When the next of all sessions' begins and ends is expected; None where nothing is."""
        least: float | None = None
        for habit in self._habits.values():
            time_s = habit.expected_s()
            if time_s is not None and time_s > now_s - SLACK_S and (least is None or time_s < least):
                least = time_s
        return least
