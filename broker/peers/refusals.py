"""Who was refused lately, or refused us, and why: for the status, and once in the log."""

from __future__ import annotations

from broker.events.log import Log
from hive_qos.text import printable

KNOWN_MAX = 64
SHOWN_S = 600.0
"""A refusal that has not come again for so long is over."""
REPEAT_S = 3600.0
"""The same refusal of the same address is logged once in so long: brokers try again every minute, for ever."""


class Refusals:
    """By address; the oldest is forgotten. Text of peers is made printable here."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._why: dict[str, tuple[str, float]] = {}
        self._logged: dict[tuple[str, str], float] = {}

    def note(self, address: str, why: str, *, code: object, now_s: float) -> None:
        """Remember a refusal, and log it unless one of that code was logged for that address lately.

        The words differ each time where they name a port or the hour; `code` does not.
        """
        why = printable(why, length_max=300)
        self._why.pop(address, None)
        self._why[address] = (why, now_s)
        if len(self._why) > KNOWN_MAX:
            del self._why[next(iter(self._why))]
        key = (address, str(code))
        logged_s = self._logged.get(key)
        if logged_s is not None and now_s < logged_s + REPEAT_S:
            return
        if len(self._logged) >= KNOWN_MAX:
            oldest = next(iter(self._logged))
            if now_s < self._logged[oldest] + SHOWN_S:
                return  # somebody makes up new reasons: the log is not for that
            del self._logged[oldest]
        self._logged.pop(key, None)
        self._logged[key] = now_s
        self._log.warning("peer-refused", address=address, reason=why)

    def forget(self, address: str) -> None:
        """All is well with this address again."""
        self._why.pop(address, None)

    def recent(self, *, now_s: float) -> dict[str, str]:
        """Address to why, of the last `SHOWN_S`."""
        return {address: why for address, (why, at_s) in self._why.items() if now_s < at_s + SHOWN_S}
