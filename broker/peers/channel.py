"""The daemon's way to other brokers: what we want of them, and what they want of us (`hive-broker/1`).

Theory of operation
- Everything happens in calls of the daemon's loop, each of which takes first what has come: one thread, no lock.
- Either side may dial, from the one socket that it listens on. A message goes over any connection to its address.
- An ask counts for the address that its connection had when it came up, which the handshake proved, and only where the
  peer's certificate names that address. A peer whose packets come from elsewhere has moved: its connection is closed
  and its leases end, for nobody knows whose the address is now.
- Leases outlive the connection that they came over; they end by themselves.
- A certificate that is renewed is presented by an engine of its own: all connections end with a goodbye, and those that
  are wanted are made anew. One that ends unrenewed closes the channel (`broker.daemon.peer_link`), so no connection
  lives longer than our certificate. The other side's is judged when a connection is made, and watched by its owner.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from broker.events.log import Log
from broker.model.addresses import is_askable, plain, plain_host
from broker.model.leases import Hold, HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.model.values import Alarm, BrokerThere
from broker.peers.peer_status import PeerStatus
from broker.peers.protocol import wire
from broker.peers.protocol.connections import CONNECTIONS_MAX, Connection, Connections
from broker.peers.protocol.lease_table import LeaseTable
from broker.peers.protocol.outgoing_requests import HoldRequests
from broker.peers.protocol.receive_quota import Reading
from broker.peers.protocol.replies import Replies
from broker.peers.quic_endpoint import QuicEndpoint
from broker.peers.refusals import Refusals
from broker.policy.types import PeersPolicy
from hive_qos.errors import PeerError
from hive_qos.text import printable
from transport.engine.base import ConnectionDown, ConnectionStatistics, ConnectionUp, OperationFailed, Received
from transport.identity import ConfiguredIdentity
from transport.wire.control_frames import HelloKey
from transport.wire.error_codes import WireCode, WireError

_OUR_MISTAKE = frozenset(wire.Refusal) - {wire.Refusal.STALE, wire.Refusal.FULL}
"""Refusals that do not go away by asking again."""
_ENGINE_FAILED = "the engine failed; no other broker is reached until a restart"


class PeerChannel:
    """See the rules above. All methods belong to one thread, the daemon's.

    Args:
        wake: called from another thread when something has come: have `urgent` looked at at once.
        clock: seconds, monotonic.
        mark: puts the socket into its class.
        port: where others listen; where we do, unless two are to be on one address.

    Raises:
        ConfigurationError: a file of `[peers]` cannot be used, or the address cannot be bound.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        wake: Callable[[], None],
        log: Log,
        clock: Callable[[], float],
        mark: Callable[[socket.socket], None] | None = None,
        port: int | None = None,
    ) -> None:
        self._log, self._clock, self._certificate = log, clock, settings.certificate
        self._asking, self._lease_table, self._answers = HoldRequests(), LeaseTable(), Replies()
        self._connections, self._reading, self._refusals = Connections(), Reading(), Refusals(log=log)
        self._attempts: dict[int, str] = {}
        self._failed = False
        run = secrets.token_bytes(wire.RUN_BYTES)
        self._carrier = QuicEndpoint(settings, run=run, wake=wake, log=log, mark=mark, port=port)
        self._warn_of_no_address()

    def renew(self, identity: ConfiguredIdentity) -> None:
        """Use the renewed certificate. What was asked is asked again, over connections that are made anew.

        Raises:
            ConfigurationError: the address cannot be bound any more; nobody is reached.
        """
        self._take()
        now_s = self._clock()
        self._attempts.clear()
        for connection in self._connections:
            self._drop(connection, now_s)
        self._asking.start_afresh()
        self._refusals = Refusals(log=self._log)
        self._carrier.renew(identity)
        self._warn_of_no_address()

    def want(self, holds: Sequence[Hold], *, reach: Iterable[str] = ()) -> None:
        """Say all that is wanted of others from now on; call it every tick.

        Args:
            holds: what is to be held back towards us, and by whom; what was there before and is not now is released.
            reach: addresses to keep a connection to, so that the first ask needs no handshake, and so that who cannot
                dial us can ask us: hosts that send us storage, and those that we send it to.
        """
        self._take()
        now_s = self._clock()
        plainly = [replace(hold, address=plain(hold.address)) for hold in holds]
        askable = [hold for hold in plainly if is_askable(hold.address)]
        others = [address for address in map(plain, reach) if is_askable(address)]
        self._asking.want(askable, reach=others, now_s=now_s)
        self._send_due(now_s)  # before anything that may wait
        self._keep_house(now_s)
        for address in self._asking.dials(now_s=now_s):
            attempt = self._carrier.dial(address)
            if attempt is not None:
                self._attempts[attempt] = address

    def leases(self) -> tuple[Lease, ...]:
        """What others have asked of us and is in force."""
        self._take()
        found = self._lease_table.leases(now_s=self._clock())
        self._lease_table.changed = False
        return found

    @property
    def urgent(self) -> bool:
        """Leases have changed since `leases` was last called, and not too often lately (`LeaseTable`)."""
        self._take()
        return self._lease_table.changed

    def answer(self, verdicts: Sequence[HoldOutcome]) -> None:
        """Tell who asked what the decision made of it."""
        self._take()
        now_s = self._clock()
        for lease, answer in self._answers.due(verdicts, self._lease_table.leases(now_s=now_s), now_s=now_s):
            connection = self._connections.to(lease.address, peer=lease.peer)
            if connection is not None:
                self._send(connection, answer, now_s)

    def brokers(self) -> Mapping[str, BrokerThere]:
        """Address to whether a broker answers there. Without an engine none does."""
        self._take()
        found = self._asking.brokers()
        return dict.fromkeys(found, BrokerThere.NO) if self._failed else found

    def held(self) -> Mapping[str, HoldOutcome]:
        """Address to what the broker there granted to our hold, as long as that is in force."""
        self._take()
        return self._asking.held(now_s=self._clock())

    def alarms(self) -> tuple[Alarm, ...]:
        """That nobody is reached any more."""
        return (Alarm("peers-failed", "peers", _ENGINE_FAILED),) if self._failed else ()

    def status(self) -> tuple[PeerStatus, ...]:
        """The other brokers, sorted by address: connected ones, those that are wanted, and who was refused."""
        self._take()
        now_s = self._clock()
        refused = self._refusals.recent(now_s=now_s)
        found = {address: PeerStatus(address, state=f"refused: {why}") for address, why in refused.items()}
        for address in self._asking.addresses():
            found[address] = PeerStatus(address, state=self._asking.state(address, now_s=now_s))
        measured, leases = self._carrier.measured(), self._lease_table.leases(now_s=now_s)
        asked = self._asking.held(now_s=now_s)
        for one in self._connections.in_use():
            statistics = measured.get(one.number)
            found[one.address] = PeerStatus(
                address=one.address,
                peer=one.peer,
                state=f"connected; refused: {refused[one.address]}" if one.address in refused else "connected",
                engine=one.engine,
                rtt_s=statistics.rtt_s if statistics is not None and statistics.rtt_s > 0 else None,
                rtt_s_min=statistics.rtt_s_min if statistics is not None and statistics.rtt_s > 0 else None,
                rtt_latest_s=statistics.rtt_latest_s if statistics is not None and statistics.rtt_s > 0 else None,
                leases=sum(1 for lease in leases if (lease.peer, lease.address) == (one.peer, one.address)),
                asked=one.address in asked and asked[one.address].granted,
            )
        return tuple(found[address] for address in sorted(found))

    def close(self) -> None:
        """Say goodbye to everybody and end the engine. Idempotent."""
        self._carrier.close()

    # --- what has come -------------------------------------------------------------------------------------------

    def _take(self) -> None:
        now_s = self._clock()
        taken = False
        while (event := self._carrier.take()) is not None:
            taken = True
            match event:
                case ConnectionUp():
                    self._met(event, now_s)
                case ConnectionDown():
                    self._parted(event, now_s)
                case Received():
                    self._reading.done(event.operation)
                    self._received(event, now_s)
                case OperationFailed():
                    self._reading.done(event.operation)
        if taken:
            self._reading.go_on(self._carrier.post, now_s=now_s)
            self._send_due(now_s)

    def _met(self, event: ConnectionUp, now_s: float) -> None:
        dialled = self._attempts.pop(event.attempt, None) if event.attempt is not None else None
        address = plain(event.remote[0])
        if dialled is not None and dialled != address:
            self._asking.failed(dialled, now_s=now_s)
        run = event.hello.get(wire.HELLO_RUN)
        if not isinstance(run, bytes) or len(run) != wire.RUN_BYTES:
            self._turn_away(event, dialled, WireCode.HELLO_INVALID, "its hello does not name its run", now_s)
            return
        if not self._make_room(event.peer, now_s):
            reason = f"{CONNECTIONS_MAX} brokers are connected already"
            self._turn_away(event, dialled, WireCode.TOO_MANY_CONNECTIONS, reason, now_s)
            return
        connection = Connection(
            number=event.connection,
            peer=event.peer,
            address=address,
            run=run,
            engine=printable(str(event.hello.get(HelloKey.ENGINE, "")), length_max=16),
            certified=address in map(plain, event.addresses),
            dialled=event.attempt is not None,
            since_s=now_s,
            used_s=now_s,
        )
        self._connections.add(connection)
        self._lease_table.met(event.peer, address, run=run)
        self._asking.reached(address, now_s=now_s)
        self._refusals.forget(address)
        self._reading.begin(event.peer, now_s=now_s)
        self._log.info("peer-connected", peer=event.peer, address=address, engine=connection.engine)

    def _turn_away(self, event: ConnectionUp, dialled: str | None, code: WireCode, reason: str, now_s: float) -> None:
        """Refuse a new connection. One that we dialled is dialled again, later where it will be refused again."""
        self._refuse(event.connection, plain(event.remote[0]), code, reason, now_s)
        if dialled is not None:
            refused = reason if code is WireCode.HELLO_INVALID else ""
            self._asking.failed(dialled, refused=refused, now_s=now_s)

    def _parted(self, event: ConnectionDown, now_s: float) -> None:
        connection = self._connections.get(event.connection)
        if connection is not None:
            self._drop(connection, now_s)
            why = "the peer closed it" if event.error is None else str(event.error)
            self._log.info("peer-disconnected", peer=connection.peer, address=connection.address, reason=why)
            return
        dialled = self._attempts.pop(event.attempt, None) if event.attempt is not None else None
        error = event.error if isinstance(event.error, PeerError) else None
        refused = printable(error.reason, length_max=300) if error is not None else ""
        if dialled is not None:
            self._asking.failed(dialled, refused=refused, now_s=now_s)
        address = dialled or plain_host(event.peer)
        if error is not None and address is not None:
            self._refusals.note(address, refused, code=error.wire_code, now_s=now_s)

    def _received(self, event: Received, now_s: float) -> None:
        connection = self._connections.get(event.connection)
        if connection is None or self._has_moved(connection, self._carrier.measured(), now_s):
            return
        connection.used_s = now_s
        try:
            message = wire.read(bytes(event.payload))
        except wire.UnacceptableAsk as problem:
            self._deny(connection, problem.number, problem.refusal, problem.text, now_s)
        except WireError as problem:
            self._refuse(connection.number, connection.address, problem.wire_code, problem.reason, now_s)
        else:
            self._heed(connection, message, now_s)

    def _heed(self, connection: Connection, message: wire.Message | None, now_s: float) -> None:
        peer, address = connection.peer, connection.address
        match message:
            case wire.Ask() if not connection.certified:
                text = f"the certificate of {peer} does not name {address}: issue it with --address {address}"
                self._deny(connection, message.number, wire.Refusal.ADDRESS, text, now_s)
            case wire.Ask():
                refusal = self._lease_table.ask(peer, address, message, run=connection.run, now_s=now_s)
                if refusal is not None:
                    self._deny(connection, message.number, refusal, _WHY[refusal], now_s)
            case wire.Release():
                self._lease_table.release(peer, address, message, run=connection.run, now_s=now_s)
            case wire.Answer():
                self._asking.answered(address, peer, message, now_s=now_s)
                if message.granted:
                    self._refusals.forget(address)
                elif message.reason.code in _OUR_MISTAKE:
                    why = f"{peer} holds nothing back: {message.reason.text}"
                    self._refusals.note(address, why, code=message.reason.code, now_s=now_s)
            case None:
                self._log.debug("peer-message-unknown", peer=peer)

    # --- what goes out -------------------------------------------------------------------------------------------

    def _send_due(self, now_s: float) -> None:
        for one in self._asking.messages(now_s=now_s):
            connection = self._connections.to(one.address)
            if connection is not None:
                self._send(connection, one.message, now_s)

    def _send(self, connection: Connection, message: wire.Message, now_s: float) -> None:
        connection.used_s = now_s
        self._carrier.send(connection.number, message, now_s=now_s)

    def _deny(self, connection: Connection, number: int, refusal: wire.Refusal, text: str, now_s: float) -> None:
        """Answer an ask that no decision needs to look at."""
        self._send(connection, wire.Answer(number, False, 0, 0.0, Reason(refusal.value, text)), now_s)
        why = f"{connection.peer} asks for what it does not get: {text}"
        self._refusals.note(connection.address, why, code=refusal, now_s=now_s)

    def _refuse(self, number: int, address: str, code: WireCode, reason: str, now_s: float) -> None:
        """Close a connection for what the peer did, or because it has no place here."""
        self._carrier.disconnect(number, code, reason)
        self._refusals.note(address, reason, code=code, now_s=now_s)
        connection = self._connections.get(number)
        if connection is not None:
            self._drop(connection, now_s)

    def _warn_of_no_address(self) -> None:
        if not self._carrier.addresses:
            note = "it names no address, so others will hold nothing back for us: issue one with --address"
            self._log.warning("certificate-unaddressed", certificate=self._certificate, note=note)

    # --- keeping house -------------------------------------------------------------------------------------------

    def _keep_house(self, now_s: float) -> None:
        """What is due with the ticks: read on, cancel what is late, end what has moved or has served."""
        self._carrier.cancel_late(now_s=now_s)
        self._reading.go_on(self._carrier.post, now_s=now_s)
        measured = self._carrier.measured()
        for connection in self._connections:
            self._has_moved(connection, measured, now_s)
        for connection in self._connections.idle(self._is_needed, now_s=now_s):
            self._close_unneeded(connection, "idle", now_s)
        if self._carrier.failed and not self._failed:
            self._failed = True
            self._log.error("peers-failed", error=_ENGINE_FAILED)

    def _has_moved(self, connection: Connection, measured: Mapping[int, ConnectionStatistics], now_s: float) -> bool:
        """Whether a peer's packets come from another address than the one that it asks for; that ends its leases."""
        statistics = measured.get(connection.number)
        if statistics is None or plain(statistics.remote[0]) == connection.address:
            return False
        self._lease_table.forget(connection.peer, connection.address, now_s=now_s)
        reason = f"its packets come from {plain(statistics.remote[0])} now; it has to dial from there"
        self._refuse(connection.number, connection.address, WireCode.NO_ERROR, reason, now_s)
        return True

    def _is_needed(self, connection: Connection) -> bool:
        if self._asking.is_wanted(connection.address):
            return True
        leases = self._lease_table.leases(now_s=self._clock())
        return any((lease.peer, lease.address) == (connection.peer, connection.address) for lease in leases)

    def _make_room(self, peer: str, now_s: float) -> bool:
        """Whether one more connection of a peer has room; one of another may go for it (`Connections.to_displace`)."""
        if not self._connections.full:
            return True
        displaced = self._connections.to_displace(peer, self._is_needed, now_s=now_s)
        if displaced is not None:
            self._close_unneeded(displaced, "no room", now_s)
        return displaced is not None

    def _close_unneeded(self, connection: Connection, why: str, now_s: float) -> None:
        self._carrier.disconnect(connection.number, WireCode.NO_ERROR, why)
        self._drop(connection, now_s)

    def _drop(self, connection: Connection, now_s: float) -> None:
        """Forget a connection that has ended, or that was closed here."""
        self._connections.remove(connection)
        if self._connections.to(connection.address) is None:
            self._asking.lost(connection.address, lived_s=now_s - connection.since_s, now_s=now_s)
        if self._connections.to(connection.address, peer=connection.peer) is None:
            self._lease_table.left(connection.peer, connection.address)
        if not self._connections.knows(connection.peer):
            self._reading.end(connection.peer)


_WHY = {
    wire.Refusal.STALE: "a later message of this broker is known already",
    wire.Refusal.FULL: "too many other brokers hold leases here",
}
