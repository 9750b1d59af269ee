"""Opens the channel to other brokers. Where that fails (a bad certificate, a port that is taken) there is an alarm and
another try: this host's own traffic is shaped all the same."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.events.log import Log
from broker.model.values import Alarm
from broker.peers.own_certificate import OwnCertificate
from broker.policy.types import PeersPolicy
from hive_qos.errors import HiveError

if TYPE_CHECKING:
    from broker.peers.channel import PeerChannel
    from transport.identity import ConfiguredIdentity

RETRY_S = 60.0
"""Between two tries. Somebody has to correct the file or free the port, and need do no more than that."""


def load_channel(engine: str) -> None:
    """Import what a channel needs, so that no try has to: on a slow host that is a second of work without a sleep."""
    import broker.peers.channel  # noqa: F401 - a QUIC stack is megabytes, and without [peers] none is needed
    from broker.peers.quic_endpoint import load_engine

    with contextlib.suppress(HiveError):  # each try says what is wrong
        load_engine(engine)


class PeerOpening:
    """For the loop's thread.

    Args:
        settings: `[peers]`.
        certificate: its files, which are read for each try.
        patience: called before a try, which may take as long as a few ticks.
        wake, log, clock, mark: as `PeerChannel`.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        certificate: OwnCertificate,
        patience: Callable[[], None],
        wake: Callable[[], None],
        log: Log,
        clock: Callable[[], float],
        mark: Callable[[socket.socket], None],
    ) -> None:
        self._settings, self._certificate = settings, certificate
        self._patience, self._wake, self._mark = patience, wake, mark
        self._log, self._clock = log, clock
        self._tried_s = float("-inf")
        self._problem: str | None = None

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
                self._log.error("peers-unavailable", error=self._problem)
            return None
        self._problem = None
        return channel

    def renew(self, channel: PeerChannel, identity: ConfiguredIdentity) -> PeerChannel | None:
        """Give an open channel another certificate; None where that cannot be opened now and is to be tried later."""
        self._patience()
        try:
            channel.renew(identity)
        except (HiveError, OSError, ValueError) as problem:
            self._problem = str(problem)
            self._log.error("peers-unavailable", error=self._problem)
            channel.close()
            return None
        return channel

    def end(self, channel: PeerChannel) -> None:
        """Close a channel whose certificate has ended. Tries from then on say what is wrong, until there is another."""
        self._patience()
        channel.close()
        self._log.error("certificate-expired")

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong."""
        if self._problem is None:
            return ()
        text = f"no other broker can be asked, nor ask us; tried again every minute: {self._problem}"
        return (Alarm("peers-unavailable", "peers", text),)

    def _open(self) -> PeerChannel:
        from broker.peers.channel import PeerChannel  # as in `load_channel`

        self._certificate.load()
        return PeerChannel(self._settings, wake=self._wake, log=self._log, clock=self._clock, mark=self._mark)
