"""When the loop decides: at every tick, and between two of them soon after something that is worth it. No clock.

A decision between two ticks rests on counters as fresh as a tick's, so the next tick comes a whole interval after it:
with a burst's announcement and its end every 0.36 s that is 11 decisions a second and not 15. Once in `PUT_OFF`
intervals there is a tick all the same, for what is done at ticks alone; where nothing is followed from tick to tick, in
`PUT_OFF_RESTING`.

A tick that is due just before a burst is expected to begin or end waits for that, or there would be two decisions one
after the other, twice in each step: 14 a second. It waits `WAIT` of an interval at most, and does not wait again
after it has waited in vain, until something is announced.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from broker.sessions.burst_habits import SLACK_S

URGENT_S = 0.005
"""Announcements that come closer together than this share a decision, so that no client can make us decide all day."""
PEERS_S = 0.001
"""The same for what other brokers ask: the channel lets few changes a second of each be as urgent as that."""
PUT_OFF = 2
"""Intervals from one tick to the next, at most."""
PUT_OFF_RESTING = 3
"""The same where the decision rests (`broker.law.skip`): after a pause of less than an interval between two bursts a
tick would else come just after the decision on the second. Storage's TCP is looked at more often than at rest (0.4
s)."""
WAIT = 0.3
"""Of an interval: 30 ms. Steps of one job differ by less; counters are read ten times a second all the same."""
WAIT_RESTING = 0.5
"""The same where the decision rests: then a tick would only read. What it would have found is found 50 ms later at
most, once, by the decision that it waits for."""
LINKS_S = 0.02
"""Links are looked at so soon after they changed, and not more often: a rename is three events, a storm is hundreds."""


@dataclass(frozen=True)
class Occasions:
    """What has happened since the last decision.

    Fields: `announced`, a burst began or ended, or looks so; `asked`, another broker asked for something or let go;
    `links`, an interface came, went or was renamed; `again_s`, when the last decision wants to be made again, whatever
    happens; `expected_s`, when a burst is expected to begin or end; `rests`, the last decision follows nothing.
    """

    announced: bool = False
    asked: bool = False
    links: bool = False
    again_s: float | None = None
    expected_s: float | None = None
    rests: bool = False


class Moment(enum.Enum):
    """What it is time for."""

    LINKS = enum.auto()
    """A tick, after a look at the links."""
    TICK = enum.auto()
    READ = enum.auto()
    """A tick at which counters were read, and the decision may wait (`broker.daemon.sample_buffer`)."""
    SOON = enum.auto()
    """A decision between two ticks."""


class Rhythm:
    """The times of one loop.

    Args:
        now_s: of the first decision; the first tick comes `tick_s` later.
    """

    def __init__(self, *, tick_s: float, now_s: float) -> None:
        self._last_s = self._ticked_s = now_s
        self._next_s, self._tick_s = now_s + tick_s, tick_s
        self._waits = True
        self.late_ticks = 0

    def due_s(self, occasions: Occasions) -> float:
        """When the next decision is due, as far as that is known now."""
        return min(self._tick_due_s(occasions), self._links_due_s(occasions), self._soon_due_s(occasions))

    def moment(self, occasions: Occasions, *, now_s: float) -> Moment | None:
        """What to do now; None before anything is due."""
        if now_s >= self._links_due_s(occasions):
            return Moment.LINKS
        soon = now_s >= self._soon_due_s(occasions)
        if now_s >= self._tick_due_s(occasions) or (soon and now_s >= self._next_s):
            return Moment.TICK
        return Moment.SOON if soon else None

    def decided(
        self, moment: Moment, *, began_s: float, ended_s: float, tick_s: float, rested: bool = False
    ) -> None:  # fmt: skip
        """It has been done. Ticks that were missed meanwhile are not made up for.

        Args:
            rested: what `Occasions.rests` was when it became due.
        """
        self._tick_s = tick_s
        if moment is not Moment.READ:
            self._last_s = began_s
        if moment is Moment.SOON:
            self._waits = True
            most = PUT_OFF_RESTING if rested else PUT_OFF
            self._next_s = max(self._next_s, min(began_s + tick_s, self._ticked_s + most * tick_s))
        elif moment in (Moment.TICK, Moment.READ):
            self._ticked_s, self._waits = began_s, began_s < self._next_s + _wait(rested) * tick_s
            missed = int((ended_s - self._next_s) / tick_s)
            self.late_ticks += missed
            self._next_s += (missed + 1) * tick_s
            if self._waits:
                self._next_s = max(self._next_s, began_s + tick_s)

    def _tick_due_s(self, occasions: Occasions) -> float:
        late_s = self._next_s + _wait(occasions.rests) * self._tick_s
        expected_s = occasions.expected_s
        near = expected_s is not None and self._next_s - SLACK_S <= expected_s < late_s
        return late_s if near and self._waits else self._next_s

    def _links_due_s(self, occasions: Occasions) -> float:
        return self._last_s + LINKS_S if occasions.links else math.inf

    def _soon_due_s(self, occasions: Occasions) -> float:
        due_s = self._last_s + URGENT_S if occasions.announced else math.inf
        if occasions.again_s is not None:
            due_s = min(due_s, max(occasions.again_s, self._last_s + URGENT_S))
        return min(due_s, self._last_s + PEERS_S) if occasions.asked else due_s


def _wait(rests: bool) -> float:
    return WAIT_RESTING if rests else WAIT
