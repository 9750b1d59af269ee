"""The daemon's precedence over ordinary programs: taken when it begins to serve, and said where it is not there."""

from __future__ import annotations

from broker import precedence
from broker.daemon.log import Log

_LATE = "holds come late while the processors are busy"


class GoingFirst:
    """For the loop's thread, which has to be the main one."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._has = False

    def begin(self) -> None:
        """Take it, for the loop and all threads that begin later."""
        refused = precedence.take()
        self._has = precedence.is_taken()
        if refused is not None:
            self._log.warning("precedence", note=f"{_LATE}: {refused}")

    def look(self) -> None:
        """Say it once when it is lost. For every tick."""
        if self._has and not precedence.is_taken():
            self._has = False
            note = f"lost, because a thread did not sleep for {precedence.SPELL_S:g} s; {_LATE}, until a restart"
            self._log.warning("precedence", note=note)
