"""A QUIC connection of aioquic that carries messages: `incoming` takes them, `outgoing` gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode
from cryptography import x509

from transport.engine.aioquic.exceptions import OpenedConnection
from transport.engine.aioquic.receive_streams import Incoming
from transport.engine.aioquic.send_streams import Outgoing, SendStream
from transport.wire.error_codes import WireError

CID_BYTES = 8
KEY_PACKETS_MAX = 2**22
"""Keys are changed after so many packets; AES-GCM allows 2^23 (RFC 9001 6.6)."""


class HiveConnection(OpenedConnection):
    """One connection. `ran_out`: since somebody cleared it there was once nothing more to send.

    Args:
        judge: called with the peer's certificates when the handshake is complete; raises `WireError` to refuse.
        on_sent: every byte of a stream is acknowledged.
        on_stopped: the peer does not want a stream; it has been reset.
        on_control: a frame of the peer's control stream.
    """

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        streams_max: int,
        message_bytes_max: int,
        judge: Callable[[Sequence[x509.Certificate]], None],
        on_sent: Callable[[SendStream], None],
        on_stopped: Callable[[SendStream, int], None],
        on_control: Callable[[int, Mapping[int, Any]], None],
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
    ) -> None:
        super().__init__(
            streams_max=streams_max,
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        self.outgoing = Outgoing(self, on_sent=on_sent)
        self.incoming = Incoming(
            self,
            first_id=3 if configuration.is_client else 2,
            stream_window_bytes=configuration.max_stream_data,
            window_bytes=configuration.max_data,
            message_bytes_max=message_bytes_max,
            on_control=on_control,
        )
        self.datagram_bytes_received = 0
        self.datagram_bytes_sent = 0
        self.datagrams_sent = 0
        self.heard_at = 0.0
        self.ran_out = True
        self.refused: tuple[int, str] | None = None
        self._judge = judge
        self._judged = False
        self._on_stopped = on_stopped
        self._keys_at = 0

    @property
    def established(self) -> bool:
        """The handshake is complete, the peer was believed, and nobody has closed."""
        return self._judged and self.refused is None and not self.over

    @property
    def over(self) -> bool:
        """Closed by either side, or about to be."""
        return self.close_event is not None

    def refuse(self, code: int, reason: str) -> None:
        """Close with an application code. As a client only once the server can read it, when it has confirmed."""
        if self.refused is None:
            self.refused = (code, reason)
        self._settle()

    def move(self) -> None:
        """Our own address has changed, as the side that dialled: say so from there, and learn the new path.

        By another connection identifier, so that nobody on the way sessions the two (RFC 9000 9.5).
        """
        self.change_connection_id()
        self.restart_path()

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
                    self._judge(self.peer_chain)
                    self._judged = True
                case StreamDataReceived() if self.established:
                    self.incoming.on_data(event.stream_id, event.data, end=event.end_stream)
                case StreamReset() if self.established:
                    self.incoming.on_reset(event.stream_id, event.error_code)
                case StopSendingReceived():
                    stream = self.outgoing.stopped(event.stream_id, event.error_code)
                    if stream is not None:
                        self._on_stopped(stream, event.error_code)
        except WireError as error:
            self.refuse(error.wire_code, error.reason)

    def update(self) -> None:
        """See what was acknowledged, and what more the peer may send."""
        self.outgoing.collect()
        if self.established:
            self.incoming.update()

    def tick(self) -> None:
        """What is due ten times a second."""
        if self.established:
            try:
                self.incoming.check_kept()
            except WireError as error:
                self.refuse(error.wire_code, error.reason)

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

    def _settle(self) -> None:
        """Close if that was decided and can be said now."""
        if self.refused is not None and self.confirmed:
            self.close(error_code=self.refused[0], reason_phrase=self.refused[1][:500])
