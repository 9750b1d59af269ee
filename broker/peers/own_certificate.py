"""This host's certificate for other brokers: loaded, watched until it ends, and taken anew when somebody renewed it.
So is the list of revoked certificates beside the CA's: whoever is on it loses the connection, which is made anew.

Whoever renews writes one file after the other, and may do it while we look: so a change counts when the files have
stayed as they are from one look to the next. A pair that cannot be used changes nothing; the alarm has the reason.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.events.log import Log
from broker.model.values import Alarm
from broker.policy.types import PeersPolicy
from hive_qos.errors import HiveError

if TYPE_CHECKING:  # who names no [peers] needs no certificates
    from broker.peers.identity import Ends
    from transport.identity import ConfiguredIdentity

LOOK_S = 10.0
"""Four stats; a renewal is in force within twice that."""
WARN_DAYS = 30
"""Ahead of a certificate's end, for whoever looks once a month."""
CA_WARN_DAYS = 90
"""Ahead of the CA's end: a rotation copies files to every node three times."""

_State = tuple[tuple[int, int, int] | None, ...]


class OwnCertificate:
    """The files of `[peers]`. For the loop's thread.

    Args:
        utc: the wall clock.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        log: Log,
        utc: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._settings, self._log, self._utc = settings, log, utc
        self._looked_s = float("-inf")
        self._judged: _State | None = None  # the files that are in use, or that were refused
        self._seen: _State | None = None
        self._ends: Ends | None = None
        self._list_until: datetime.datetime | None = None
        self._refused: str | None = None

    def load(self) -> ConfiguredIdentity:
        """Read the files.

        Raises:
            ConfigurationError: as `broker_identity`.
        """
        from broker.peers.identity import broker_identity, ends_of
        from transport.identity.revocation import list_until

        self._judged = self._seen = self._state()
        identity = broker_identity(self._settings)
        self._ends, self._refused = ends_of(identity), None
        self._list_until = list_until(self._settings.ca)
        return identity

    def renewed(self, *, now_s: float, at_once: bool = False) -> ConfiguredIdentity | None:
        """What to be from now on, where the files have changed since they were loaded, and can be used. For every tick.

        Args:
            at_once: look now, and take files as they are: whoever asks has written them.
        """
        if now_s - self._looked_s < LOOK_S and not at_once:
            return None
        self._looked_s = now_s
        before, self._seen = self._seen, self._state()
        tried = self._seen == self._judged and (self._refused is None or not at_once)
        if tried or (self._seen != before and not at_once):
            return None
        try:
            identity = self.load()
        except (HiveError, OSError, ValueError) as problem:
            self._refused = str(problem)
            self._log.error("certificate-refused", error=self._refused)
            return None
        self._log.info("certificate-renewed", certificate=self._settings.certificate, until=str(self._until))
        return identity

    @property
    def _until(self) -> datetime.datetime | None:
        return self._ends.first if self._ends is not None else None

    @property
    def has_ended(self) -> bool:
        """The one in use is not good any more, and no other has been taken."""
        return self._until is not None and self._utc() > self._until

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong, or soon will be."""
        found: list[Alarm] = []
        if self._refused is not None:
            until = self._until.date() if self._until is not None else None
            text = f"the renewed files are not taken, the former ones hold (until {until}): {self._refused}"
            found.append(Alarm("certificate-refused", "peers.certificate", text))
        if self._ends is None:
            return tuple(found)
        if self._ends_within(self._ends.certificate, WARN_DAYS):
            end = self._ends.certificate.date()
            text = f"{self._settings.certificate} is good until {end}; issue another in its place"
            found.append(Alarm("certificate-expires", "peers.certificate", text))
        if self._ends_within(self._ends.authority, CA_WARN_DAYS):
            text = f"the CA of {self._settings.certificate} is good until {self._ends.authority.date()}; rotate it"
            found.append(Alarm("ca-expires", "peers.ca", text))
        elif self._list_until is not None and self._ends_within(self._list_until, CA_WARN_DAYS):
            text = f"the revocation list beside {self._settings.ca} ends on {self._list_until.date()}; copy the newest"
            found.append(Alarm("ca-expires", "peers.ca", text))
        return tuple(found)

    def _ends_within(self, end: datetime.datetime, days: int) -> bool:
        return (end.date() - self._utc().date()).days <= days

    def _state(self) -> _State:
        from transport.identity.revocation import list_beside

        settings = self._settings
        paths = (settings.ca, str(list_beside(settings.ca)), settings.certificate, settings.key)
        return tuple(_state_of(path) for path in paths)


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
