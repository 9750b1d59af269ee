"""One connection: who is at the other end, what it sends and receives, and why it ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from aioquic.quic.events import HandshakeCompleted, QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode

from hive_qos.errors import ConnectionLostError, PeerError, TransportError
from transport.engine import admission
from transport.engine.aioquic.configuration import DATAGRAM_BYTES, Endpoint, configuration_of
from transport.engine.aioquic.exceptions import OpenedConnection
from transport.engine.aioquic.receive_streams import Incoming, code_name
from transport.engine.aioquic.send_streams import Outgoing, SendStream
from transport.engine.base import DEAD_AFTER_S, ConnectionStatistics, EngineSettings
from transport.engine.validation import CONTROL_STREAM_LEVEL, called
from transport.wire.control_frames import FrameType, encode_frame, read_hold
from transport.wire.error_codes import WireCode, WireError

KEY_PACKETS_MAX = 2**22
"""Keys are changed after so many packets; AES-GCM allows 2^23 (RFC 9001 6.6)."""


class Session(OpenedConnection):
    """A QUIC connection of an endpoint that carries messages: `incoming` takes them, `outgoing` gives them.

    `number` is its id once it is up. `peer` is an address until the certificate has been judged. `source`: as whom it
    is counted while it is half open, where others dialled. `proved`: its first packet answered a Retry. `timer_at`:
    when it is to be driven next; None where it waits for room in its socket. `ran_out`: since somebody cleared it there
    was once nothing more to send.

    Args:
        attempt: where this side dials.
        original_cid: where the peer dialled, the identifier that it began with.
        retry_cid: what it had from us in a Retry, where it has answered one.
        on_verified: the certificate is good; raises `WireError` to refuse.
        on_ready: the peer has said hello; raises `WireError` to refuse.
        on_sent: every byte of a stream is acknowledged.
        on_stopped: the peer does not want a stream; it has been reset.
        on_hold: the peer has a group's collectives from a step on wait, or go on.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        address: Any,
        *,
        settings: EngineSettings,
        now: float,
        on_verified: Callable[[Session], None],
        on_ready: Callable[[Session], None],
        on_sent: Callable[[SendStream], None],
        on_stopped: Callable[[SendStream, int], None],
        on_hold: Callable[[Session, str, int, bool], None],
        attempt: int | None = None,
        expected_peer: str | None = None,
        original_cid: bytes | None = None,
        retry_cid: bytes | None = None,
    ) -> None:
        configuration = configuration_of(endpoint, settings, is_client=original_cid is None)
        super().__init__(
            streams_max=settings.streams_max,
            configuration=configuration,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
        )
        self.outgoing = Outgoing(self, on_sent=on_sent)
        self.incoming = Incoming(
            self,
            first_id=3 if configuration.is_client else 2,
            stream_window_bytes=configuration.max_stream_data,
            window_bytes=configuration.max_data,
            message_bytes_max=settings.message_bytes_max,
            on_control=self._on_control,
            say=self._say,
        )
        self.endpoint = endpoint
        self._settings = settings
        self.address = address
        self.attempt = attempt
        self.expected_peer = expected_peer
        self.proved = retry_cid is not None
        self.source = ""
        self.number: int | None = None
        self.peer = called(address, expected_peer)
        self.addresses: frozenset[str] = frozenset()
        self.verified = False
        self.peer_hello: Mapping[int, Any] | None = None
        self.started_at = self.heard_at = self.measured_at = now
        self.sent_at = self._pinged_at = 0.0
        self.timer_at: float | None = None
        self.measured_bytes = 0
        self.datagram_bytes_received = self.datagram_bytes_sent = self.datagrams_sent = 0
        self.ran_out = True
        self.ended = self.silent = False
        self.refused: WireError | None = None
        self.local_error: TransportError | None = None
        self._on_verified, self._on_ready, self._on_stopped = on_verified, on_ready, on_stopped
        self._on_hold = functools.partial(on_hold, self)
        self._control: SendStream | None = None
        self._keys_at = 0

    @property
    def established(self) -> bool:
        """The handshake is complete, the peer was believed, and nobody has closed."""
        return self.verified and self.refused is None and not self.over

    @property
    def over(self) -> bool:
        """Closed by either side, or about to be."""
        return self.close_event is not None

    @property
    def identity(self) -> admission.Identity:
        """As whom the other end is counted."""
        return admission.identity_of(self.peer, self.endpoint.hello, self.peer_hello or {}, bulk=self.endpoint.bulk)

    @property
    def message_bytes_max(self) -> int:
        """The longest message that the peer says it accepts."""
        return admission.message_bytes_accepted(self.peer_hello or {})

    def refuse(self, error: WireError) -> None:
        """Close with an application code. As a client only once the server can read it, when it has confirmed."""
        self.refused = self.refused or error
        self._settle()

    def move(self) -> None:
        """Our own address has changed, as the side that dialled: say so from there, and learn the new path.

        By another connection identifier, so that nobody on the way connects the two (RFC 9000 9.5).
        """
        self.change_connection_id()
        self.restart_path()

    # What comes

    def receive(self, data: bytes, address: Any, now: float) -> None:
        """Take a datagram."""
        self.datagram_bytes_received += len(data)
        try:
            if self.hear(data, address, now=now):
                self.heard_at = now
        except Exception as failure:  # noqa: BLE001 - whatever a peer's bytes make aioquic raise concerns that peer alone
            # A certificate of a version that nobody knows is enough.
            self.close(error_code=QuicErrorCode.INTERNAL_ERROR, reason_phrase=f"cannot be read: {failure!r}"[:200])
        if self.path_is_new():
            self.restart_path()
        self._settle()

    def take(self, event: QuicEvent) -> None:
        """Take an event of aioquic's."""
        try:
            match event:
                case HandshakeCompleted():
                    self._judge()
                case StreamDataReceived() if self.established:
                    self.incoming.on_data(event.stream_id, event.data, end=event.end_stream)
                case StreamReset() if self.established:
                    self.incoming.on_reset(event.stream_id, event.error_code)
                case StopSendingReceived():
                    stream = self.outgoing.stopped(event.stream_id, event.error_code)
                    if stream is not None:
                        self._on_stopped(stream, event.error_code)
        except WireError as error:
            self.refuse(error)

    def update(self) -> None:
        """See what was acknowledged, and what more the peer may send."""
        self.outgoing.collect()
        if self.established:
            self.incoming.update()

    def tick(self, now: float) -> None:
        """What is due ten times a second: see what the peer makes us keep, and whether it is still there."""
        if self.established:
            try:
                self.incoming.check_kept()
            except WireError as error:
                self.refuse(error)
        if self.over:
            return
        silent_s, keep_alive_s = now - self.heard_at, self._settings.keep_alive_s
        if self.number is None:
            patience_s = self._settings.handshake_timeout_s
            if not (self.proved or self.attempt is not None or self.proved_address):
                patience_s = min(patience_s, admission.UNPROVED_S_MAX)
            if now - self.started_at > patience_s:
                self._give_up(WireCode.HANDSHAKE_TIMEOUT, f"no connection within {patience_s:g} s")
            return
        patience_s = self._settings.dead_after_s or DEAD_AFTER_S
        if silent_s > patience_s:
            self.silent = True
            self._give_up(WireCode.DEAD, f"nothing heard for {silent_s:.1f} s (dead after {patience_s:g} s)")
        elif silent_s >= keep_alive_s and now - self._pinged_at >= keep_alive_s:
            self._pinged_at = self.timer_at = now
            self.send_ping(0)

    def _give_up(self, code: WireCode, reason: str) -> None:
        self.local_error = self.local_error or ConnectionLostError(self.peer, reason)
        self.close(error_code=code, reason_phrase=reason[:500])

    # What goes

    def transmit(self, now: float, ahead_bytes: float) -> list[tuple[bytes, Any]]:
        """Datagrams to send now, with their address; new data until `ahead_bytes` wait in the stack."""
        if self.get_peer_address() is None:
            return []
        self.update()  # a post may have freed credit
        if self.established:
            self.outgoing.feed(ahead_bytes)
        if self.datagrams_sent - self._keys_at >= KEY_PACKETS_MAX:
            self._keys_at = self.datagrams_sent
            self.request_key_update()
        datagrams = self.datagrams_to_send(now)
        self.datagrams_sent += len(datagrams)
        self.datagram_bytes_sent += sum(len(data) for data, _ in datagrams)
        if not self.outgoing.has_work:
            self.ran_out = True
        return datagrams

    # What is told of it

    def end_error(self) -> TransportError | None:
        """Why the connection is over; None for a goodbye."""
        if self.local_error is not None:
            return self.local_error
        if self.refused is not None:
            return PeerError(self.peer, self.refused.reason, wire_code=self.refused.wire_code)
        event = self.close_event
        if event is None:
            return ConnectionLostError(self.peer, "the connection is gone")
        if event.frame_type is not None:
            return ConnectionLostError(
                self.peer, f"QUIC ended: {event.reason_phrase or 'no reason'} (0x{event.error_code:x})"
            )
        if event.error_code == WireCode.NO_ERROR:
            return None
        said = f"closed the connection with {code_name(event.error_code)}: {event.reason_phrase}"
        if event.error_code in (WireCode.DEAD, WireCode.INTERNAL):
            return ConnectionLostError(self.peer, said)
        return PeerError(self.peer, said, wire_code=event.error_code)

    def measure(self, *, now_s: float) -> ConnectionStatistics:
        """What the connection measured; called ten times a second, which is the span of its rate of delivery."""
        controller = self.controller
        rtt_s, latest_s = self.rtt_s
        delivered_bytes = controller.delivered_bytes
        rate_bits_per_s = int((delivered_bytes - self.measured_bytes) * 8 / (now_s - self.measured_at))
        application_limited = self.ran_out or controller.bytes_in_flight == 0
        self.measured_at, self.measured_bytes, self.ran_out = now_s, delivered_bytes, False
        return ConnectionStatistics(
            peer=self.peer,
            remote=(self.address[0], self.address[1]),
            bulk=self.endpoint.bulk,
            rtt_s=rtt_s,
            rtt_s_min=min(controller.rtt_s_min, latest_s),
            rtt_latest_s=latest_s,
            congestion_window_bytes=controller.congestion_window,
            sent_bytes=self.datagram_bytes_sent,
            received_bytes=self.datagram_bytes_received,
            delivered_bytes=delivered_bytes,
            lost_packets=controller.lost_packets,
            sent_packets=self.datagrams_sent,
            delivery_rate_bits_per_s=rate_bits_per_s,
            application_limited=application_limited,
            path_mtu_bytes=DATAGRAM_BYTES,
        )

    # Inside

    def _judge(self) -> None:
        """Verify the peer; if it is good, say hello."""
        try:
            verified = admission.admit_chain(self.peer_chain, self.endpoint.trust, expected_peer=self.expected_peer)
        except WireError as error:
            self.local_error = PeerError(self.peer, error.reason, wire_code=error.wire_code)
            raise
        self.peer, self.addresses, self.verified = verified.name, verified.addresses, True
        self._on_verified(self)
        self._control = SendStream(
            operation=-1,
            prefix=encode_frame(FrameType.HELLO, self.endpoint.hello),
            payload=None,
            priority=CONTROL_STREAM_LEVEL,
            open_ended=True,
        )
        self.outgoing.submit(self._control)

    def _on_control(self, frame_type: int, fields: Mapping[int, Any]) -> None:
        """A frame of the peer's control stream.

        Raises:
            WireError: the hello is missing, repeated, or not acceptable.
        """
        if frame_type == FrameType.HELLO:
            if self.peer_hello is not None:
                raise WireError(WireCode.PROTOCOL_VIOLATION, "said hello twice")
            admission.admit_hello(self.endpoint.hello, fields)
            self.peer_hello = dict(fields)
            self._on_ready(self)
        elif self.peer_hello is None:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "sent something else before its hello")
        elif frame_type == FrameType.HOLD:
            self._on_hold(*read_hold(fields))

    def _say(self, frame: bytes, behind_bytes_max: float) -> bool:
        """Send a frame behind the hello, which is out before messages come."""
        control = self._control
        if control is None or control.fed < control.total or self.over:
            return False
        if control.fed - self.sent_of(control.stream_id) > behind_bytes_max:
            return False
        self.send_stream_data(control.stream_id, frame)
        control.fed = control.total = control.fed + len(frame)
        return True

    def _settle(self) -> None:
        """Close if that was decided and can be said now."""
        if self.refused is not None and self.confirmed:
            self.close(error_code=self.refused.wire_code, reason_phrase=self.refused.reason[:500])
