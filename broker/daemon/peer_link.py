"""The other brokers as the daemon's loop sees them: who sends to us, what we ask of them, what they ask of us.

Between the decision, which knows neither sockets nor peers, and the channel (`broker.peers`). Where the configuration
names no `[peers]` there is no channel: then nobody can be asked, and nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.api.snapshot import HoldsInfo
from broker.daemon.peer_opening import PeerOpening
from broker.law.decision import Decision
from broker.measure.flow_table import FlowTable
from broker.measure.senders import PeerRtts, SenderTable
from broker.model.leases import HELD_CLASS, Hold, Lease
from broker.model.values import Alarm, SenderSample
from broker.peers.own_certificate import OwnCertificate

if TYPE_CHECKING:  # a QUIC stack is megabytes, and who names no [peers] needs none
    from broker.peers.channel import PeerChannel

InterfaceOf = Callable[[str], str | None]
"""The shaped interface towards an address, None where it is not one of ours."""


class PeerLink:
    """For the loop's thread. Until `meet` nobody is asked, and nobody asks."""

    def __init__(self) -> None:
        self._opening: PeerOpening | None = None
        self._certificate: OwnCertificate | None = None
        self._channel: PeerChannel | None = None
        self._arrivals = SenderTable()
        self._leases: tuple[Lease, ...] = ()
        self._trips = PeerRtts()

    def meet(self, opening: PeerOpening, certificate: OwnCertificate, *, now_s: float) -> None:
        """Have a channel opened, which `close` closes, and be who the certificate says."""
        self._opening, self._certificate = opening, certificate
        self.look(now_s=now_s)

    def look(self, *, now_s: float) -> None:
        """Open the channel, where there is to be one and there is none yet, and measure the ways. For every tick.

        Of each broker's round trips the least is shown: what a burst's own queue adds is no way that a hold has to go.
        """
        if self._channel is None and self._opening is not None:
            self._channel = self._opening.look()
        self.renew(now_s=now_s, at_once=False)
        if self._channel is not None and self._trips.is_due(now_s=now_s):
            self._trips.look(self._channel.status(), now_s=now_s)

    def renew(self, *, now_s: float, at_once: bool) -> None:
        """Be who a renewed certificate says, where one is on disk, and nobody once ours has ended.

        Args:
            at_once: who asks has just written it.
        """
        if self._channel is None or self._certificate is None or self._opening is None:
            return
        identity = self._certificate.renewed(now_s=now_s, at_once=at_once)
        if identity is not None:
            self._channel = self._opening.renew(self._channel, identity)
        elif self._certificate.has_ended:
            self._opening.end(self._channel)
            self._channel = None

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong with the way to others."""
        parts = (self._opening, self._certificate, self._channel)
        return tuple(alarm for part in parts if part is not None for alarm in part.alarms())

    @property
    def urgent(self) -> bool:
        """Another broker has asked for something, or has let go: decide now."""
        return self._channel is not None and self._channel.urgent

    def close(self) -> None:
        """Say goodbye to all."""
        if self._channel is not None:
            self._channel.close()

    def senders(
        self, flows: FlowTable, *, wanted: bool, interface_of: InterfaceOf, now_s: float
    ) -> Mapping[str, tuple[SenderSample, ...]]:
        """Who sends to us through each interface, after the last look at TCP.

        Args:
            wanted: whether a way in is looked after; else, where nobody is to be asked either, it is not counted.
        """
        if not wanted and self._opening is None:
            return {}
        self._arrivals.count(flows.tcp_connections(), whole=flows.tcp_whole)
        brokers = self._channel.brokers() if self._channel is not None else {}
        nobody = "unknown" if self._channel is not None else "no"
        return self._arrivals.samples(
            interface_of=interface_of,
            broker_of=lambda address: brokers.get(address, nobody),
            trip_of=self._trips.get,
            held=self._channel.held() if self._channel is not None else {},
            now_s=now_s,
        )

    def leases(self, *, interface_of: InterfaceOf) -> Mapping[str, tuple[Lease, ...]]:
        """What others ask of us, by the interface that leads to them."""
        self._leases = self._channel.leases() if self._channel is not None else ()
        found: dict[str, tuple[Lease, ...]] = {}
        for lease in self._leases:
            interface = interface_of(lease.address)
            if interface is not None:
                found[interface] = (*found.get(interface, ()), lease)
        return found

    def ask(self, holds: Sequence[Hold]) -> None:
        """Ask others for all of this, at once; and keep a way open to all who share storage with us."""
        if self._channel is not None:
            self._channel.want(holds, reach=self._arrivals.addresses(HELD_CLASS))

    def answer(self, decision: Decision) -> None:
        """Say what became of what was asked of us. After the kernel has it: who measures is not told too early."""
        if self._channel is not None:
            self._channel.answer(decision.verdicts)

    def info(self, decision: Decision) -> HoldsInfo:
        """For the status."""
        if self._channel is None:
            return HoldsInfo()
        said = self._channel.held()
        made = {(one.peer, one.address, one.number): one for one in decision.verdicts}
        return HoldsInfo(
            asked=tuple((hold, said.get(hold.address)) for hold in decision.holds),
            leases=tuple((lease, made.get((lease.peer, lease.address, lease.number))) for lease in self._leases),
            peers=self._channel.status(),
        )
