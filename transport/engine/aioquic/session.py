"""One connection as the engine keeps it: who is at the other end, what is under way, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cryptography import x509

from hive_qos.errors import ConnectionLostError, PeerError, TransportError
from transport.engine import admission
from transport.engine.aioquic.receive_streams import code_name
from transport.engine.aioquic.send_streams import SendStream
from transport.engine.base import ConnectionStatistics
from transport.engine.validation import CONTROL_STREAM_LEVEL, called
from transport.identity.credentials import Trust
from transport.wire.control_frames import FrameType, encode_frame
from transport.wire.error_codes import WireCode, WireError

if TYPE_CHECKING:
    from transport.engine.aioquic.connection import HiveConnection


@dataclass(eq=False, kw_only=True)
class Session:
    """State of one connection beside QUIC's.

    `number` is the connection's id once it is up. `peer` is an address until the certificate has been judged. `proved`:
    its first packet answered a Retry. `source`: as whom it is counted while it is half open, where others dialled.
    `timer_at`: when it is to be driven next; None where it waits for room in its socket.
    """

    endpoint: int
    bulk: bool
    address: Any
    trust: Trust
    hello: Mapping[int, object]
    attempt: int | None
    expected_peer: str | None
    proved: bool
    started_at: float
    on_ready: Callable[[Session], None]
    source: str = ""
    number: int | None = None
    peer: str = ""
    addresses: frozenset[str] = frozenset()
    verified: bool = False
    peer_hello: Mapping[int, Any] | None = None
    pinged_at: float = 0.0
    timer_at: float | None = None
    sent_at: float = 0.0
    measured_at: float = field(init=False)
    measured_bytes: int = 0
    ended: bool = False
    closed_here: bool = False
    silent: bool = False
    local_error: TransportError | None = None
    connection: HiveConnection = field(init=False)

    def __post_init__(self) -> None:
        self.peer = called(self.address, self.expected_peer)
        self.measured_at = self.started_at

    def judge(self, chain: Sequence[x509.Certificate]) -> None:
        """Verify the peer; if it is good, say hello.

        Raises:
            WireError: it is not good, with the code to close with.
        """
        try:
            verified = admission.admit_chain(chain, self.trust, expected_peer=self.expected_peer)
        except WireError as error:
            self.local_error = PeerError(self.peer, error.reason, wire_code=error.wire_code)
            raise
        self.peer, self.addresses, self.verified = verified.name, verified.addresses, True
        control = SendStream(
            operation=-1,
            prefix=encode_frame(FrameType.HELLO, self.hello),
            payload=None,
            priority=CONTROL_STREAM_LEVEL,
            open_ended=True,
        )
        self.connection.outgoing.submit(control)

    def on_control(self, frame_type: int, fields: Mapping[int, Any]) -> None:
        """A frame of the peer's control stream.

        Raises:
            WireError: the hello is missing, repeated, or not acceptable.
        """
        if frame_type == FrameType.HELLO:
            if self.peer_hello is not None:
                raise WireError(WireCode.PROTOCOL_VIOLATION, "said hello twice")
            admission.admit_hello(self.hello, fields)
            self.peer_hello = dict(fields)
            self.on_ready(self)
        elif self.peer_hello is None:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "sent something else before its hello")

    @property
    def identity(self) -> admission.Identity:
        """As whom the other end is counted."""
        return admission.identity_of(self.peer, self.hello, self.peer_hello or {}, bulk=self.bulk)

    @property
    def message_bytes_max(self) -> int:
        """The longest message that the peer says it accepts."""
        return admission.message_bytes_accepted(self.peer_hello or {})

    def end_error(self) -> TransportError | None:
        """Why the connection is over; None for a goodbye."""
        if self.local_error is not None:
            return self.local_error
        if self.connection.refused is not None:
            code, reason = self.connection.refused
            return None if code == WireCode.NO_ERROR else PeerError(self.peer, reason, wire_code=code)
        event = self.connection.close_event
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
        connection, controller = self.connection, self.connection.controller
        rtt_s, latest_s = connection.rtt_s
        delivered_bytes = controller.delivered_bytes
        rate_bits_per_s = int((delivered_bytes - self.measured_bytes) * 8 / (now_s - self.measured_at))
        application_limited = connection.ran_out or controller.bytes_in_flight == 0
        self.measured_at, self.measured_bytes, connection.ran_out = now_s, delivered_bytes, False
        return ConnectionStatistics(
            peer=self.peer,
            remote=(self.address[0], self.address[1]),
            bulk=self.bulk,
            rtt_s=rtt_s,
            rtt_s_min=min(controller.rtt_s_min, latest_s),
            rtt_latest_s=latest_s,
            congestion_window_bytes=controller.congestion_window,
            in_flight_bytes=controller.bytes_in_flight,
            sent_bytes=connection.datagram_bytes_sent,
            received_bytes=connection.datagram_bytes_received,
            delivered_bytes=delivered_bytes,
            lost_packets=controller.lost_packets,
            sent_packets=connection.datagrams_sent,
            delivery_rate_bits_per_s=rate_bits_per_s,
            application_limited=application_limited,
            path_mtu_bytes=connection.datagram_bytes,
            ecn_ce_reports=None,
        )
