"""Other brokers as the loop sees them: who sends to us, which holds we ask for, which leases others have here.

It stands between the decision, which knows no sockets, and the channel (`broker.peers`). Without `[peers]` in the
configuration there is no channel: nobody can be asked, and nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.api.documents.snapshot import HoldsInfo
from broker.daemon.peer_opening import PeerOpening
from broker.law.decision import Decision
from broker.measure.flow_table import FlowTable
from broker.measure.senders import PeerRtts, SenderTable
from broker.model.leases import HELD_CLASS, Hold, HoldOutcome, Lease
from broker.model.reasons import Because
from broker.model.values import Alarm, BrokerThere, SenderSample
from broker.peers.own_certificate import OwnCertificate

if TYPE_CHECKING:  # a QUIC stack is megabytes, and who names no [peers] needs none
    from broker.peers.channel import PeerChannel

InterfaceOf = Callable[[str], str | None]
"""The shaped interface towards an address, None where it is not one of ours."""


class PeerLink:
    """For the loop's thread. Until `meet` no request is sent or received."""

    def __init__(self) -> None:
        self._opening: PeerOpening | None = None
        self._certificate: OwnCertificate | None = None
        self._channel: PeerChannel | None = None
        self._arrivals = SenderTable()
        self._leases: tuple[Lease, ...] = ()
        self._trips = PeerRtts()

    def meet(self, opening: PeerOpening, certificate: OwnCertificate, *, now_s: float) -> None:
        """Open a channel with this certificate; `close` closes it."""
        self._opening, self._certificate = opening, certificate
        self.look(now_s=now_s)

    def look(self, *, now_s: float) -> None:
        """Open the channel, where one is configured and not open yet, and measure round trips. For every tick.

        Of each broker's round trips the least counts: what a burst's own queue adds does not delay a hold.
        """
        if self._channel is None and self._opening is not None:
            self._channel = self._opening.look()
        self.renew(now_s=now_s, at_once=False)
        if self._channel is not None and self._trips.is_due(now_s=now_s):
            self._trips.look(self._channel.status(), now_s=now_s)

    def renew(self, *, now_s: float, at_once: bool) -> None:
        """Use a renewed certificate, where one is on disk, and close the channel once ours has expired.

        Args:
            at_once: look now, as it has just been written.
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
        """What is wrong with the channel and its certificate."""
        parts = (self._opening, self._certificate, self._channel)
        return tuple(alarm for part in parts if part is not None for alarm in part.alarms())

    @property
    def urgent(self) -> bool:
        """Another broker has asked for something, or has let go: decide now."""
        return self._channel is not None and self._channel.urgent

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()

    def senders(
        self, flows: FlowTable, *, wanted: bool, interface_of: InterfaceOf, now_s: float
    ) -> Mapping[str, tuple[SenderSample, ...]]:
        """Who sends to us through each interface, after the last look at TCP.

        Args:
            wanted: whether any inbound direction is shaped. Without that and without a channel nothing is counted.
        """
        if not wanted and self._opening is None:
            return {}
        self._arrivals.count(flows.tcp_connections(), whole=flows.tcp_whole)
        brokers = self._channel.brokers() if self._channel is not None else {}
        nobody = BrokerThere.UNKNOWN if self._channel is not None else BrokerThere.NO
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
        """Answer others' requests after the kernel has applied them, so that no answer is early."""
        if self._channel is not None:
            self._channel.answer(self._verdicts(decision))

    def hold_nobody(self, decision: Decision) -> None:
        """In a pause: ask nobody for anything, and refuse what others ask."""
        self.ask(())
        if self._channel is not None:
            why = Because.HOLD_REFUSED(why="this host's broker is paused")
            self._channel.answer(
                [replace(one, granted=False, rate_bits_per_s=0, reason=why) for one in self._verdicts(decision)]
            )

    def info(self, decision: Decision) -> HoldsInfo:
        """For the status."""
        if self._channel is None:
            return HoldsInfo()
        answers = self._channel.held()
        made = {(one.peer, one.address, one.number): one for one in self._verdicts(decision)}
        return HoldsInfo(
            asked=tuple((hold, answers.get(hold.address)) for hold in decision.holds),
            leases=tuple((lease, made.get((lease.peer, lease.address, lease.number))) for lease in self._leases),
            peers=self._channel.status(),
        )

    def _verdicts(self, decision: Decision) -> list[HoldOutcome]:
        """One for each lease: what leads to an asker by no shaped interface is refused, so that it holds us itself."""
        decided = {(one.peer, one.address) for one in decision.verdicts}
        why = Because.HOLD_REFUSED(why="no interface that is shaped here leads there")
        refused = (
            HoldOutcome(lease.peer, lease.address, lease.number, False, 0, why)
            for lease in self._leases
            if (lease.peer, lease.address) not in decided
        )
        return [*decision.verdicts, *refused]
