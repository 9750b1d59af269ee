"""A QUIC connection on aioquic's state machine, with message streams of our own and a short way for ordinary packets.

aioquic does the handshake, keys, connection identifiers, path validation and timers. Once the handshake is confirmed,
packets that hold only stream data, acknowledgements and credit are read here and written in `aioquic_sending`; anything
else, on either side, goes aioquic's way. Its own streams are never used, so its passes over all streams cost nothing.
This file uses private parts of aioquic and is checked against 1.7; `tests/loopback/engines` would notice others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioquic import tls
from aioquic._crypto import CryptoError
from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # its own __all__ leaves it out
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    Limit,
    QuicConnectionError,
    QuicReceiveContext,
)
from aioquic.quic.packet import QuicErrorCode, decode_packet_number
from cryptography import x509

from transport.engine.aioquic import frames
from transport.engine.aioquic.loss_recovery import Recovery
from transport.engine.aioquic.packet_builder import SendingConnection
from transport.engine.aioquic.receive_streams import Incoming, TransportViolation
from transport.engine.aioquic.send_streams import Outgoing
from transport.engine.aioquic.streams import SendStream
from transport.wire.error_codes import WireError

CID_BYTES = 8
ACK_DELAY_S_MAX = 0.004
ACK_DELAY_S_MIN = 0.001
QUICK_ACKS = 100
"""The first packets are acknowledged after 1 ms at most, so that the peer's slow start is not held back."""
ACK_EVERY_PACKETS = 48


class HiveConnection(SendingConnection):
    """One connection.

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
        bulk: bool,
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
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        client = configuration.is_client
        self._local_max_streams_bidi = Limit(0x12, "max_streams_bidi", 0)
        self._local_max_streams_uni = Limit(0x13, "max_streams_uni", streams_max)
        self.outgoing = Outgoing(first_id=2 if client else 3, on_sent=on_sent)
        self.incoming = Incoming(
            first_id=3 if client else 2,
            stream_window_bytes=configuration.max_stream_data,
            window_bytes=configuration.max_data,
            streams_max=streams_max,
            message_bytes_max=message_bytes_max,
            on_control=on_control,
        )
        self.recovery = Recovery(
            bulk=bulk,
            congestion_control_algorithm=configuration.congestion_control_algorithm,
            initial_rtt=configuration.initial_rtt,
            max_datagram_size=self._max_datagram_size,
            peer_completed_address_validation=not client,
            send_probe=self._send_probe,
            logger=self._logger,
        )
        self._loss = self.recovery
        self.datagram_bytes_received = 0
        self.heard_at = 0.0
        self.refused: tuple[int, str] | None = None
        self._judge = judge
        self._judged = False
        self._on_stopped = on_stopped
        self._unacknowledged = 0
        self._received_packets = 0
        self._key_packets = 0
        self._keyed_at = -1
        self._new_keys_wanted = False
        self._keys_since = 0  # the first packet of ours with today's keys
        self._path_host: Any = None
        self._context: QuicReceiveContext | None = None
        self._space: Any = None
        self._crypto: Any = None
        self._end_of_message = False
        self._acknowledgement_wish = False

    @property
    def established(self) -> bool:
        """The handshake is complete, the peer was believed, and nobody has closed."""
        return self._judged and self.refused is None and self._close_event is None

    @property
    def close_event(self) -> Any:
        """aioquic's `ConnectionTerminated`, once the connection is over."""
        return self._close_event

    def want_prompt_acknowledgements(self) -> None:
        """Ask the peer to acknowledge every packet at once: a send ends with its last one, which quinn may else keep
        back for 25 ms. To be asked only of peers that understand it."""
        self._acknowledgement_wish = True

    def refuse(self, code: int, reason: str) -> None:
        """Close with an application code. As a client only once the server can read it, when it has confirmed."""
        if self.refused is None:
            self.refused = (code, reason)
        self.settle()

    def shrink(self, datagram_bytes: int) -> None:
        """Send smaller datagrams from now on; what was too long counts as lost and is sent again."""
        self._max_datagram_size = datagram_bytes

    def move(self) -> None:
        """Our own address has changed, as the side that dialled: say so from there, and learn the new path.

        By another connection identifier, so that nobody on the way links the two (RFC 9000 9.5).
        """
        self.change_connection_id()
        self.recovery.restart()
        self._probe_pending = True  # at once, whatever is still counted as under way

    @property
    def proved_address(self) -> Any:
        """Where the peer has shown that it is: by the handshake or by a path challenge (RFC 9000 8); None before that.

        It sends from somewhere else for as long as a move has not been validated.
        """
        return next((path.addr for path in self._network_paths if path.is_validated), None)

    def settle(self) -> None:
        """Close if that was decided and can be said now."""
        if self.refused is not None and self._handshake_confirmed:
            self.close(error_code=self.refused[0], reason_phrase=self.refused[1][:500])

    def raise_in_close(self, error: WireError | TransportViolation) -> None:
        """Close for what the peer did."""
        if isinstance(error, WireError):
            self.refuse(error.wire_code, error.reason)
        else:
            self.close(error_code=error.code, frame_type=0, reason_phrase=error.reason)

    # Receiving

    def receive(self, data: bytes, address: Any, now: float) -> None:
        """Take a datagram."""
        self.datagram_bytes_received += len(data)
        if data[0] & 0x80 or not self._handshake_confirmed or data[1 : 1 + CID_BYTES] != self.host_cid:
            self._receive_the_long_way(data, address, now)
            self.settle()
            return
        if self._close_event is not None:
            return
        path = self._network_paths[0]
        if path.addr != address or not path.is_validated:
            self._receive_the_long_way(data, address, now)
            return
        space = self._space
        if space is None:
            space = self._space = self._spaces[tls.Epoch.ONE_RTT]
            self._crypto = self._cryptos[tls.Epoch.ONE_RTT]
            self._context = QuicReceiveContext(tls.Epoch.ONE_RTT, self.host_cid, path, None, now, None)
        try:
            first, payload, number = self._open(data, space.expected_packet_number)
        except CryptoError:
            return
        if number in space.received_packets:
            return
        if first & 0x18 or not payload:
            self.close(error_code=QuicErrorCode.PROTOCOL_VIOLATION, frame_type=0, reason_phrase="malformed packet")
            return
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        self.heard_at = now
        context = self._context
        assert context is not None
        context.time, context.host_cid, context.network_path = now, self.host_cid, path
        try:
            eliciting = self._read_frames(context, payload)
        except QuicConnectionError as error:
            self.close(error_code=error.error_code, frame_type=error.frame_type, reason_phrase=error.reason_phrase)
        if self._close_event is not None:
            return
        self._close_at = now + self._configuration.idle_timeout
        self._ack_eliciting_sent_since_receipt = False
        self._note_received(space, number, eliciting=eliciting, now=now)

    def _receive_the_long_way(self, data: bytes, address: Any, now: float) -> None:
        """Let aioquic read it. It puts the idle deadline off for packets that decrypt, and only those were heard."""
        idle_at = self._close_at
        self._close_at = -1.0 if idle_at is not None else None
        try:
            self.receive_datagram(data, address, now)
        except Exception as failure:  # noqa: BLE001 - whatever a peer's bytes make aioquic raise concerns that peer alone
            # A certificate of a version that nobody knows is enough.
            self.close(error_code=QuicErrorCode.INTERNAL_ERROR, reason_phrase=f"cannot be read: {failure!r}"[:200])
        if self._close_at == -1.0:
            self._close_at = idle_at
        elif not self.over:
            self.heard_at = now
        if self._network_paths and self._network_paths[0].is_validated:
            self._note_path()

    def _note_path(self) -> None:
        """The peer's address is proved. Where its host is another than before, so is the path (RFC 9000 9.4)."""
        host = self._network_paths[0].addr[0]
        if self._path_host not in (None, host):
            self.recovery.restart()
        self._path_host = host
        if self._handshake_confirmed:
            for path in self._network_paths[1:]:
                if path.is_validated and not path.remote_challenges:
                    self._network_paths.remove(path)
                    if path.peer_cid is not None:
                        self._retire_peer_cid(path.peer_cid)

    def _open(self, data: bytes, expected: int) -> tuple[int, bytes, int]:
        """Take a short-header packet apart: first byte, payload, number (RFC 9001 5.3 and 5.4).

        Raises:
            CryptoError: not from the peer, or of keys that are gone.
        """
        crypto = self._crypto
        opener = crypto.recv
        if len(data) < 1 + CID_BYTES + 20:
            raise CryptoError("too short to sample")
        mask = opener.hp._mask(data[13:29])
        first = data[0] ^ (mask[0] & 0x1F)
        if (first & 4) >> 2 != opener.key_phase:
            _, payload, number = crypto.decrypt_packet(data, 1 + CID_BYTES, expected)  # the peer changes keys
            self._note_new_keys()
            return first, payload, number
        end = 10 + (first & 3)
        truncated = 0
        for at in range(9, end):
            truncated = truncated << 8 | (data[at] ^ mask[at - 8])
        number = decode_packet_number(truncated, (end - 9) * 8, expected)
        head = bytes((first,)) + data[1:9] + truncated.to_bytes(end - 9, "big")
        return first, opener.aead.decrypt(data[end:], head, number), number

    def _note_new_keys(self) -> None:
        """A peer may change keys again when we have acknowledged with the new ones, so not before we have sent any.

        Raises:
            CryptoError: it did (RFC 9001 6.2), and the connection is closed for it.
        """
        if self._packet_number == self._keyed_at:
            self.close(
                error_code=QuicErrorCode.KEY_UPDATE_ERROR, frame_type=0, reason_phrase="keys were changed too often"
            )
            raise CryptoError("keys were changed too often")
        self._keyed_at = self._keys_since = self._packet_number

    def _note_received(self, space: Any, number: int, *, eliciting: bool, now: float) -> None:
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        space.ack_queue.add(number)
        space.received_packets.add(number)
        if len(space.ack_queue) > 64:
            space.ack_queue.shift()
        self._received_packets += 1
        if not eliciting:
            return
        self._unacknowledged += 1
        if self._end_of_message or self._unacknowledged >= ACK_EVERY_PACKETS:
            self._end_of_message = False
            space.ack_at = now
        elif space.ack_at is None:
            delay = ACK_DELAY_S_MIN
            if self._received_packets > QUICK_ACKS and self.recovery._rtt_initialized:
                delay = min(ACK_DELAY_S_MAX, max(delay, self.recovery._rtt_smoothed / 4))
            space.ack_at = now + delay

    def _read_frames(self, context: QuicReceiveContext, payload: bytes) -> bool:
        """Handle a packet's frames; whether it has to be acknowledged."""
        at, end, eliciting = 0, len(payload), False
        view = memoryview(payload)
        try:
            while at < end:
                kind = payload[at]
                if frames.STREAM_FIRST <= kind <= frames.STREAM_LAST:
                    stream_id, at = frames.read_varint(payload, at + 1)
                    offset = 0
                    if kind & 4:
                        offset, at = frames.read_varint(payload, at)
                    if kind & 2:
                        length, at = frames.read_varint(payload, at)
                        stop = at + length
                        if stop > end:
                            raise IndexError
                    else:
                        stop = end
                    eliciting = True
                    self._on_stream(stream_id, offset, view[at:stop], fin=bool(kind & 1))
                    at = stop
                elif kind == frames.ACK:
                    ranges, delay, at = frames.read_ack_frame(payload, at + 1)
                    self.recovery.on_ack_received(
                        ack_rangeset=ranges,
                        ack_delay=(delay << self._remote_ack_delay_exponent) / 1e6,
                        now=context.time,
                        space=self._spaces[tls.Epoch.ONE_RTT],
                    )
                elif kind == frames.MAX_DATA:
                    limit, at = frames.read_varint(payload, at + 1)
                    eliciting = True
                    self._remote_max_data = max(self._remote_max_data, limit)
                    self.outgoing.allow_bytes(limit)
                elif kind == frames.MAX_STREAM_DATA:
                    stream_id, at = frames.read_varint(payload, at + 1)
                    limit, at = frames.read_varint(payload, at)
                    eliciting = True
                    self.outgoing.allow_stream(stream_id, limit)
                elif kind == frames.MAX_STREAMS_UNI:
                    limit, at = frames.read_varint(payload, at + 1)
                    eliciting = True
                    self.outgoing.streams_allowed = max(self.outgoing.streams_allowed, limit)
                elif kind == frames.PING:
                    at, eliciting = at + 1, True
                elif kind == frames.PADDING:
                    at += 1
                else:
                    # aioquic reads the rest; its handlers for our frames are overridden below.
                    return self._payload_received(context, payload[at:])[0] or eliciting
                if self._close_event is not None:
                    break
        except (IndexError, ValueError) as error:
            raise QuicConnectionError(QuicErrorCode.FRAME_ENCODING_ERROR, 0, "a frame is truncated") from error
        return eliciting

    def _on_stream(self, stream_id: int, offset: int, data: bytes | memoryview, *, fin: bool) -> None:
        if not self.established:
            # Only after the certificate was judged may anything be read; a refused peer's data is ignored.
            return
        self._end_of_message = self._end_of_message or fin
        try:
            self.incoming.on_stream(stream_id, offset, data, fin)
        except (WireError, TransportViolation) as error:
            self.raise_in_close(error)

    def _handle_crypto_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        super()._handle_crypto_frame(context, frame_type, buf)
        if self._handshake_complete and not self._judged:
            self._judged = True
            leaf = self.tls._peer_certificate
            chain = [] if leaf is None else [leaf, *self.tls._peer_certificate_chain]
            self.outgoing.credit_bytes = self._remote_max_data
            self.outgoing.reserve_bytes = self._remote_max_data // 4
            self.outgoing.streams_allowed = self._remote_max_streams_uni
            self.outgoing.stream_window_bytes = self._remote_max_stream_data_uni
            try:
                self._judge(chain)
            except WireError as error:
                self.refuse(error.wire_code, error.reason)

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._request_client_certificate = not self._is_client

    def _handle_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id = buf.pull_uint_var()
        offset = buf.pull_uint_var() if frame_type & 4 else 0
        length = buf.pull_uint_var() if frame_type & 2 else buf.capacity - buf.tell()
        self._on_stream(stream_id, offset, buf.pull_bytes(length), fin=bool(frame_type & 1))

    def _handle_reset_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id, code, final_size = buf.pull_uint_var(), buf.pull_uint_var(), buf.pull_uint_var()
        if not self.established:
            return
        try:
            self.incoming.on_reset(stream_id, code, final_size)
        except (WireError, TransportViolation) as error:
            self.raise_in_close(error)

    def _handle_stop_sending_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id, code = buf.pull_uint_var(), buf.pull_uint_var()
        stream = self.outgoing.streams.get(stream_id)
        if stream is not None and stream.reset_code is None:
            self.outgoing.give_up(stream, code)
            self._on_stopped(stream, code)

    def _handle_max_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        limit = buf.pull_uint_var()
        self._remote_max_data = max(self._remote_max_data, limit)
        self.outgoing.allow_bytes(limit)

    def _handle_max_stream_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        stream_id, limit = buf.pull_uint_var(), buf.pull_uint_var()
        self.outgoing.allow_stream(stream_id, limit)

    def _handle_max_streams_uni_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        self.outgoing.streams_allowed = max(self.outgoing.streams_allowed, buf.pull_uint_var())

    def _handle_stream_data_blocked_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        buf.pull_uint_var()
        buf.pull_uint_var()
