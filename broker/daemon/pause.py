"""A pause: for a while nobody is limited, whatever is decided. It ends by itself, and no restart continues it."""

from __future__ import annotations

from collections.abc import Callable

from broker.model.values import Alarm


class Pause:
    """For the loop's thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s: float | None = None

    @property
    def active(self) -> bool:
        """Whether nothing is to be limited, also when the time is over and nobody has ended it yet."""
        return self._until_s is not None

    @property
    def due(self) -> bool:
        """Whether it is to be ended now."""
        return self._until_s is not None and self._clock() >= self._until_s

    @property
    def left_s(self) -> float | None:
        """Until it ends by itself; None while there is none."""
        return None if self._until_s is None else max(0.0, self._until_s - self._clock())

    def begin(self, for_s: float) -> None:
        """Begin one, or give the one that goes on another end."""
        self._until_s = self._clock() + for_s

    def end(self) -> None:
        """Limits are in force again."""
        self._until_s = None

    def alarms(self) -> tuple[Alarm, ...]:
        """That there is one."""
        if self._until_s is None:
            return ()
        text = f"nobody is limited; limits come back in {self.left_s:.0f} s, or by `hive-qos resume`"
        return (Alarm("shaping-paused", "broker", text),)
