"""The daemon's precedence over ordinary programs: taken when it begins to serve, and taken away from it while it uses
too much of the processor, whoever is to blame.

Who floods the port of `[peers]`, or opens and closes sessions as fast as he can, makes threads of ours work, and what
they do comes before every ordinary program. A thread that never sleeps is caught by the kernel
(`broker.process.rt_priority`); one that sleeps for 2 ms at a time is not. So the threads that have precedence have
`BUDGET` of a core between them: `SPELL_S` above that, and they run like everybody else's until they have been below it
for `CALM_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from broker.model.values import Alarm
from broker.process import rt_priority
from broker.process.log import Log

BUDGET = 0.3
"""Of one core. With 1,000 flows 0.03 are used; a slow processor may need five times that."""
SPELL_S, CALM_S = 2.0, 30.0
"""A start or a reload is over in less than two seconds. Who makes us lose it again and again has it for a sixteenth."""
_LATE = "holds come late while the processors are busy"
_WORKS = f"its threads have used more than {BUDGET:g} of a core for {SPELL_S:g} s: somebody makes them work"
_HANGS = f"a thread did not sleep for {rt_priority.SPELL_S:g} s"


class RtBudget:
    """For the loop's thread, which has to be the main one.

    Args:
        spent_s: processor time of the threads that have it, by thread.
    """

    def __init__(
        self,
        *,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        spent_s: Callable[[], Mapping[int, float]] = rt_priority.spent_s,
    ) -> None:
        self._log, self._clock, self._spent_s = log, clock, spent_s
        self._may = False
        self._lost = ""
        self._calm_s = 0.0
        self._window_s, self._before = 0.0, dict[int, float]()

    def begin(self) -> None:
        """Take it, for the loop and all threads that begin later."""
        refused = rt_priority.take()
        self._may = rt_priority.is_taken()
        self._window_s, self._before = self._clock(), dict(self._spent_s())
        if refused is not None:
            self._log.warning("priority-refused", error=refused)

    def look(self) -> None:
        """Take it away or back, where that is due. For every tick."""
        if not self._may:
            return
        now_s = self._clock()
        if not self._lost and not rt_priority.is_taken():
            self._lose(_HANGS, now_s=now_s)
        if now_s - self._window_s < SPELL_S:
            return
        after = dict(self._spent_s())
        used_s = sum(max(0.0, spent_s - self._before.get(thread, 0.0)) for thread, spent_s in after.items())
        busy = used_s > BUDGET * (now_s - self._window_s)
        self._window_s, self._before = now_s, after
        if busy and not self._lost:
            rt_priority.give_up_all()
            self._lose(_WORKS, now_s=now_s)
        elif busy:
            self._calm_s = now_s
        elif self._lost and now_s - self._calm_s >= CALM_S:
            self._take_again(now_s=now_s)

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now."""
        if not self._lost:
            return ()
        text = f"{self._lost}; {_LATE}, until {CALM_S:g} s after that is over"
        return (Alarm("priority-lost", "daemon", text),)

    def _lose(self, why: str, *, now_s: float) -> None:
        self._lost, self._calm_s = why, now_s
        self._log.warning("priority-lost", reason=why)

    def _take_again(self, *, now_s: float) -> None:
        try:
            rt_priority.take_again()
        except (OSError, ValueError) as problem:
            self._calm_s = now_s
            self._log.warning("priority-refused", error=str(problem))
            return
        self._lost = ""
        self._log.info("priority-restored")
