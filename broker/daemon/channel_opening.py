"""The channel to other brokers, opened when it can be. A certificate that is not good, or a port that is taken, is an
alarm and is tried again: this host's own traffic is shaped all the same."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.daemon.log import Log
from broker.model import Alarm
from broker.policy import PeersPolicy
from hive_qos.errors import HiveError

if TYPE_CHECKING:
    from broker.peers.channel import PeerChannel

RETRY_S = 60.0
WARN_DAYS = 30
"""Ahead of a certificate's end, for whoever looks once a month."""


class ChannelOpening:
    """For the loop's thread.

    Args:
        settings: `[peers]`.
        patience: called before a try, which may take as long as a few ticks.
        wake, log, clock, mark: as `PeerChannel`.
        today: the date by the wall clock.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        patience: Callable[[], None],
        wake: Callable[[], None],
        log: Log,
        clock: Callable[[], float],
        mark: Callable[[socket.socket], None],
        today: Callable[[], datetime.date] = lambda: datetime.datetime.now(datetime.UTC).date(),
    ) -> None:
        self._settings, self._patience, self._wake, self._mark = settings, patience, wake, mark
        self._log, self._clock, self._today = log, clock, today
        self._tried_s = float("-inf")
        self._problem: str | None = None
        self._last_day: datetime.date | None = None

    def look(self) -> PeerChannel | None:
        """Try, unless the last time was less than `RETRY_S` ago; the channel, where it opens. Call it until then."""
        now_s = self._clock()
        if now_s - self._tried_s < RETRY_S:
            return None
        self._tried_s = now_s
        self._patience()
        try:
            channel = self._open()
        except (HiveError, OSError, ValueError) as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                self._log.error("peers", error=self._problem)
            return None
        self._problem = None
        return channel

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong, or soon will be."""
        if self._problem is not None:
            text = f"no other broker can be asked, nor ask us; tried again every minute: {self._problem}"
            return (Alarm("peers-unavailable", "peers", text),)
        if self._last_day is None or (self._last_day - self._today()).days > WARN_DAYS:
            return ()
        text = f"{self._settings.certificate} is good until {self._last_day}; issue another and restart the broker"
        return (Alarm("certificate-expires", "peers.certificate", text),)

    def _open(self) -> PeerChannel:
        from broker.peers.channel import PeerChannel  # a QUIC stack is megabytes, and without [peers] none is needed
        from broker.peers.identity import broker_identity, last_day

        self._last_day = last_day(broker_identity(self._settings))
        return PeerChannel(self._settings, wake=self._wake, log=self._log, clock=self._clock, mark=self._mark)
