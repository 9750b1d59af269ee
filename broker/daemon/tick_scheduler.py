"""When the loop decides: at every tick, and between two ticks after an event that calls for it. Pure: no clock.

anything is active        a tick each `tick_s` (0.1 s unless configured)
nothing is active         a tick each `IDLE_TICK_S`
a burst is announced      at once, `URGENT_S` after the last decision at the earliest
another broker asks       at once, `PEERS_S` after it
an interface changes      at once, `LINKS_S` after it
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

IDLE_TICK_S = 0.4
"""What starts meanwhile is shaped at once by the classes in the kernel. An idle daemon stays below 1 % of a core."""
URGENT_S = 0.005
"""Announcements that come closer together share a decision, so that no client can make us decide all the time."""
PEERS_S = 0.001
"""The same for requests of other brokers; the channel limits how many of each are urgent."""
LINKS_S = 0.02
"""Interfaces are looked at so soon after a change, and not more often: a rename is three events, a storm hundreds."""


@dataclass(frozen=True)
class Events:
    """What has happened since the last decision.

    Fields: `announced`, a burst began or ended, or looks so; `asked`, another broker asked for something or let go;
    `links`, an interface came, went or was renamed; `again_s`, when the last decision wants to be made again.
    """

    announced: bool = False
    asked: bool = False
    links: bool = False
    again_s: float | None = None


class Due(enum.Enum):
    """What it is time for."""

    LINKS = enum.auto()
    """A tick, after a look at the links."""
    TICK = enum.auto()
    BETWEEN = enum.auto()
    """A decision between two ticks."""


class TickScheduler:
    """The times of one loop.

    Args:
        now_s: of the first decision.
        interval_s: from it to the first tick.
    """

    def __init__(self, *, now_s: float, interval_s: float) -> None:
        self._decided_s = now_s
        self._next_s = now_s + interval_s
        self.late_ticks = 0

    def due_s(self, events: Events) -> float:
        """When the next decision is due, as far as that is known now."""
        return min(self._next_s, self._links_due_s(events), self._between_due_s(events))

    def due(self, events: Events, *, now_s: float) -> Due | None:
        """What is due now; None before anything is."""
        if now_s >= self._links_due_s(events):
            return Due.LINKS
        if now_s >= self._next_s:
            return Due.TICK
        return Due.BETWEEN if now_s >= self._between_due_s(events) else None

    def decided(self, due: Due, *, began_s: float, ended_s: float, interval_s: float) -> None:
        """It has been done; the next tick comes `interval_s` after this one began. Missed ticks are not made up for.

        What was decided between two ticks may have found something active: then the next tick comes no later.
        """
        self._decided_s = began_s
        if due is Due.BETWEEN:
            self._next_s = min(self._next_s, began_s + interval_s)
            return
        missed = int(max(0.0, ended_s - began_s) / interval_s)
        self.late_ticks += missed
        self._next_s = began_s + (missed + 1) * interval_s

    def _links_due_s(self, events: Events) -> float:
        return self._decided_s + LINKS_S if events.links else math.inf

    def _between_due_s(self, events: Events) -> float:
        due_s = self._decided_s + URGENT_S if events.announced else math.inf
        if events.again_s is not None:
            due_s = min(due_s, max(events.again_s, self._decided_s + URGENT_S))
        return min(due_s, self._decided_s + PEERS_S) if events.asked else due_s
