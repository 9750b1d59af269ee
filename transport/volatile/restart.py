"""Whether a job has to begin anew: most of its members have died, and processes of their names ask to join. Pure, but
for what it reads in the register.

While half of a view's workers are dead, no step can be committed in it: that takes more than half of them. Nor has
anybody who lives changed it, though that takes seconds. So nothing that could still happen in it is lost with it.
"""

from __future__ import annotations

import math

from transport.volatile.admission import SILENT_S
from transport.volatile.register import Register
from transport.volatile.view import Member, View

STANDS_S = 30.0
"""A view that does not change for so long changes no more: a loss is seen within 4 s, and agreed on within 10."""


class Restart:
    """What somebody who waits knows of the members' ends. Names are unique: whose name another process has is dead."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._epoch, self._look_s = 0, math.inf
        self._asking: dict[int, Member] = {}
        self._beats: dict[Member, int | None] = {}

    def is_due(self, view: View, now_s: float) -> bool:
        """Whether that view, the one in force, can be replaced by a new beginning. To be asked again and again.

        Raises:
            RegisterLostError: the register cannot be reached.
        """
        if view.epoch != self._epoch:
            self._epoch, self._look_s, self._asking, self._beats = view.epoch, now_s + STANDS_S, {}, {}
        if now_s < self._look_s:
            return False
        self._look_s = now_s + SILENT_S
        for number in range(view.asked + 1, self._register.asked() + 1):
            if number not in self._asking and (request := self._register.request(number)) is not None:
                self._asking[number] = request[0]
        before = self._beats
        self._beats = {one: self._register.beat(one) for one in set(self._asking.values())}
        living = {one for one, beat in self._beats.items() if one in before and beat != before[one]}
        names = {one.name for one in living}
        dead = [one for one in view.workers if one.name in names and one not in living]
        return 2 * len(dead) >= len(view.workers)
