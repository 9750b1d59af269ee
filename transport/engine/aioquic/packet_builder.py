"""How a QUIC connection on aioquic's state machine sends: ordinary packets of our own, the rest by aioquic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioquic import tls
from aioquic.quic.connection import END_STATES, QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState

from transport.engine.aioquic import frames
from transport.engine.aioquic.loss_recovery import Recovery, SentPacket
from transport.engine.aioquic.receive_streams import Incoming
from transport.engine.aioquic.send_streams import Outgoing

KEY_PACKETS_MAX = 2**22
"""Keys are changed after so many packets; AES-GCM allows 2^23 (RFC 9001 6.6)."""

_PROMPTLY = frames.ack_frequency_frame(threshold=0, delay_us=25_000, reordering=2)
_ONE_RTT, _ONE_RTT_TYPE = tls.Epoch.ONE_RTT, QuicPacketType.ONE_RTT


class SendingConnection(QuicConnection):
    """The sending half of `HiveConnection`, which fills in what it declares."""

    outgoing: Outgoing
    incoming: Incoming
    recovery: Recovery
    _unacknowledged: int
    _key_packets: int
    _new_keys_wanted: bool
    _keys_since: int
    _acknowledgement_wish: bool

    @property
    def over(self) -> bool:
        """Closed by either side, or about to be."""
        return self._close_event is not None

    def request_key_update(self) -> None:
        """Change keys as soon as the peer has acknowledged a packet of today's: before, RFC 9001 6.2 forbids it, and a
        peer that has sent nothing meanwhile closes the connection."""
        self._new_keys_wanted = True

    def transmit(self, now: float, packets_max: int) -> list[tuple[bytes, Any]]:
        """Datagrams to send now, at most about `packets_max`, with their address."""
        if not self._network_paths or self._state in END_STATES:
            return []
        out: list[tuple[bytes, Any]] = []
        if self._aioquic_has_work():
            out = self.datagrams_to_send(now)
        if not self._handshake_confirmed or self.over:
            return out
        path = self._network_paths[0]
        space = self._spaces[tls.Epoch.ONE_RTT]
        crypto = self._cryptos[tls.Epoch.ONE_RTT]
        if self._new_keys_wanted and space.largest_acked_packet >= self._keys_since:
            self._new_keys_wanted, self._keys_since = False, self._packet_number
            crypto.update_key()
        recovery = self.recovery
        controller = recovery._cc
        size = self._max_datagram_size
        self._pacing_at = None
        while len(out) < packets_max and path.can_send(size):
            ack_due = space.ack_at is not None and space.ack_at <= now
            probe = self._probe_pending
            own_work = bool(self._ping_pending) or self._acknowledgement_wish
            wanted = probe or own_work or self.incoming.has_work or self.outgoing.has_work
            allowed = wanted
            if wanted and not probe:
                if controller.bytes_in_flight + size > controller.congestion_window:
                    recovery.window_limited_number = self._packet_number
                    allowed = False
                else:
                    self._pacing_at = recovery.pacer.next_send_at(now_s=now)
                    allowed = self._pacing_at is None
            if not (ack_due or allowed):
                break
            packet = SentPacket(_ONE_RTT, _ONE_RTT_TYPE, self._packet_number, now)
            head = (0x41 | self._spin_bit << 5 | crypto.key_phase << 2).to_bytes(1, "big") + self._peer_cid.cid
            parts: list[Any] = []
            room = size - len(head) - 2 - 16
            self._fill(parts, room, packet, space, now=now, with_data=allowed)
            if not parts:
                break
            out.append((self._seal(crypto, head, parts, packet), path.addr))
            path.bytes_sent += packet.sent_bytes
            recovery.on_packet_sent(packet=packet, space=space)
            if packet.in_flight:
                recovery.pacer.on_sent(packet.sent_bytes)
            if packet.is_ack_eliciting and not self._ack_eliciting_sent_since_receipt:
                self._close_at = now + self._configuration.idle_timeout
                self._ack_eliciting_sent_since_receipt = True
        recovery.application_limited = not self.outgoing.has_work
        if recovery.application_limited:
            recovery.delivery.on_limited()
        return out

    def _fill(
        self, parts: list[Any], room: int, packet: SentPacket, space: Any, *, now: float, with_data: bool
    ) -> None:
        handlers = packet.delivery_handlers
        if space.ack_at is not None and (space.ack_at <= now or with_data) and len(space.ack_queue):
            delay_us = int((now - space.largest_received_time) * 1e6)
            frame = frames.ack_frame(space.ack_queue, delay_us=delay_us, exponent=self._local_ack_delay_exponent)
            parts.append(frame)
            room -= len(frame)
            handlers.append((self._on_ack_delivery, (space, space.largest_received_packet)))
            space.ack_at = None
            self._unacknowledged = 0
            if len(space.ack_queue) > 1 and self._packet_number % 16 == 0 and not with_data:
                with_data = True
                self._ping_pending.append(0)  # so that the peer acknowledges, and old ranges can be forgotten
        if with_data:
            before = len(parts)
            if self._ping_pending:
                parts.append(b"\x01")
                room -= 1
                self._ping_pending.clear()
            if self._acknowledgement_wish:
                self._acknowledgement_wish = False
                parts.append(_PROMPTLY)
                room -= len(_PROMPTLY)
                handlers.append((self._on_wish_delivery, ()))
            room = self.incoming.fill(parts, room, handlers)
            room = self.outgoing.fill(parts, room, handlers)
            if self._probe_pending:
                self._probe_pending = False
                if len(parts) == before:
                    parts.append(b"\x01")
            if len(parts) > before:
                packet.is_ack_eliciting = packet.in_flight = True

    def _seal(self, crypto: Any, head: bytes, parts: list[Any], packet: SentPacket) -> bytes:
        number = self._packet_number
        payload = b"".join(parts)
        if len(payload) < 4:
            payload += bytes(4 - len(payload))  # header protection samples behind the longest packet number
            packet.in_flight = True
        if crypto._update_key_requested:
            crypto._update_key("local_update")
        sealer = crypto.send
        short = number & 0xFFFF
        body = sealer.aead.encrypt(payload, head + short.to_bytes(2, "big"), number)
        mask = sealer.hp._mask(body[2:18])
        first = head[0] ^ (mask[0] & 0x1F)
        protected = (short ^ (mask[1] << 8 | mask[2])).to_bytes(2, "big")
        sealed: bytes = b"".join((first.to_bytes(1, "big"), head[1:], protected, body))
        packet.sent_bytes = len(sealed)
        self._packet_number = number + 1
        self._key_packets += 1
        if self._key_packets >= KEY_PACKETS_MAX:
            self._key_packets = 0
            self.request_key_update()
        return sealed

    def _aioquic_has_work(self) -> bool:
        """Whether something waits that only aioquic writes: handshake, close, identifiers, paths."""
        if not self._handshake_confirmed or self._close_pending or self._handshake_done_pending:
            return True
        if self._retire_connection_ids or len(self._network_paths) > 1 or self._network_paths[0].remote_challenges:
            return True
        if not self._crypto_streams[tls.Epoch.ONE_RTT].sender.buffer_is_empty:
            return True
        return any(not identifier.was_sent for identifier in self._host_cids)

    def _write_connection_limits(self, builder: Any, space: Any) -> None:
        """Credit is ours to give: see `incoming`."""

    def _on_wish_delivery(self, delivery: QuicDeliveryState) -> None:
        self._acknowledgement_wish = delivery is QuicDeliveryState.LOST

    def _on_ping_delivery(self, delivery: QuicDeliveryState, uids: Sequence[int]) -> None:
        """Pings only have to be acknowledged; a lost one is not repeated, the next follows soon."""
