"""Whether a job has to begin anew, or to go on from the step that somebody who was left out holds: half of its workers,
or more, have died or failed, and processes of their names ask to join. Pure, but for what it reads in the register.

While half of a view's workers are dead, no step can be committed in it: that takes more than half of them. Who lives
changes it within seconds, or at least has those connect who ask to join. Where nothing of that happens, nobody does.
"""

from __future__ import annotations

import math

from transport.volatile.links.mesh import connect_s
from transport.volatile.protocol.admission import READ_BACK_MAX, SILENT_S
from transport.volatile.protocol.view import Member, View
from transport.volatile.register.register import Register

STANDS_S = 20.0
"""Where nothing has happened for so long, and for as long as connecting may take, nothing will: a loss is seen within
5 s and agreed on within 10, and who asks is to connect again as soon as the last try was in vain."""


class Restart:
    """What somebody who waits knows of the members' ends. Names are unique: whose name another process has is dead."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._seen, self._look_s = (0, 0), math.inf
        self._asking: dict[int, Member] = {}
        self._beats: dict[Member, tuple[int, int] | None] = {}

    def is_due(self, view: View, mesh: int, now_s: float, step: int) -> bool:
        """Whether that view, the one in force, can be replaced by a new beginning. To be asked again and again.

        Args:
            mesh: the number of the connections that were planned last.
            step: the last one that who asks this holds, and can go on from; -1 for none. Who holds a later one is to.

        Raises:
            RegisterLostError: the register cannot be reached.
        """
        if (view.epoch, mesh) != self._seen:
            stands_s = STANDS_S + connect_s(2 * len(view.members))  # and as many who ask
            self._seen, self._look_s, self._asking, self._beats = (view.epoch, mesh), now_s + stands_s, {}, {}
        if now_s < self._look_s:
            return False
        self._look_s = now_s + SILENT_S
        asked = self._register.asked()
        for number in range(max(view.asked, asked - READ_BACK_MAX) + 1, asked + 1):
            if number not in self._asking and (member := self._register.request(number)) is not None:
                self._asking[number] = member
        before = self._beats
        self._beats = {one: self._register.beat(one) for one in set(self._asking.values())}
        living = {one: beat[1] for one, beat in self._beats.items() if beat and one in before and beat != before[one]}
        if any(held > step for held in living.values()):
            return False
        names = {one.name for one in living}
        dead = [one for one in view.workers if one.name in names and one not in living]
        # The half that does not ask may live, and have committed a later step: who goes on from one needs most of them.
        return 2 * len(dead) > len(view.workers) if step >= 0 else 2 * len(dead) >= len(view.workers)
