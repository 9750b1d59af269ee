"""What this engine needs of aioquic beyond its public interface: all of it is here, and nothing else in the package
names a private part of aioquic.

Each has a test in `tests/unit/engine/test_aioquic_exceptions.py` that fails when aioquic changes (checked against 1.7):
1. The client's certificate is asked for, and the peer's chain is handed out: aioquic judges servers only, with rules of
   the web; here `transport.identity` judges both sides alike.
2. Credit is granted by the receiver of messages (`receive_streams`). aioquic would double each limit on use, so that
   nothing ever holds a sender back.
3. How much credit the peer has granted, how much of a stream was sent, and whether all of it is acknowledged: a send
   ends with that, and priorities need that little waits in the stack.
4. Why and whether the connection ended, before its draining period is over; whether the handshake is confirmed.
5. Whether a datagram came from the peer: only those may keep a connection alive.
6. What of the path was measured, with counters that aioquic does not have (`Cubic`); and to forget that where the path
   is another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet_builder import QuicPacketBuilder
from cryptography.x509 import Certificate


class Cubic(CubicCongestionControl):
    """CUBIC (RFC 9438), which counts what it is told. `rtt_s_min` is of the path; infinite before the first sample."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.rtt_s_min = math.inf
        self.delivered_bytes = 0
        self.lost_packets = 0

    def count_on(self, before: Cubic) -> None:
        """Take over the counts of the control before, and what is in flight; nothing of what it learnt."""
        self.bytes_in_flight = before.bytes_in_flight
        self.delivered_bytes, self.lost_packets = before.delivered_bytes, before.lost_packets

    def on_packet_acked(self, *, now: float, packet: Any) -> None:
        self.delivered_bytes += packet.sent_bytes
        super().on_packet_acked(now=now, packet=packet)

    def on_packets_lost(self, *, now: float, packets: Iterable[Any]) -> None:
        lost = list(packets)
        self.lost_packets += len(lost)
        super().on_packets_lost(now=now, packets=lost)

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        self.rtt_s_min = min(rtt, self.rtt_s_min)
        super().on_rtt_measurement(now=now, rtt=rtt)


CONTROLLERS = {"auto": "hive-cubic", "cubic": "hive-cubic"}
"""By what `EngineSettings.congestion` says. `auto` is CUBIC."""
register_congestion_control("hive-cubic", Cubic)


class OpenedConnection(QuicConnection):
    """A QUIC connection of aioquic, opened where `exceptions` says.

    Args:
        streams_max: unidirectional streams that the peer may have open at once. Of the other kind it may have none.
    """

    def __init__(self, *, streams_max: int, **options: Any) -> None:
        super().__init__(**options)
        for limit, streams in ((self._local_max_streams_bidi, 0), (self._local_max_streams_uni, streams_max)):
            limit.value = limit.sent = streams
        self._path_host: str | None = None
        self.streams_held = 0
        """Streams that have ended and count as open all the same."""

    # 1. Certificates

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._request_client_certificate = not self.configuration.is_client

    @property
    def peer_chain(self) -> list[Certificate]:
        """The peer's certificates, leaf first, once the handshake is complete."""
        leaf = self.tls._peer_certificate
        return [] if leaf is None else [leaf, *self.tls._peer_certificate_chain]

    # 2. Credit for the peer

    @property
    def received_bytes(self) -> int:
        """Of all streams, gaps included: what counts against the limit."""
        return self._local_max_data.used

    @property
    def data_limit(self) -> int:
        """Up to where the peer may send on all streams together."""
        return self._local_max_data.value

    def grant_data(self, limit: int) -> None:
        """MAX_DATA."""
        self._local_max_data.value = max(limit, self._local_max_data.value)

    def grant_stream(self, stream_id: int, limit: int) -> None:
        """MAX_STREAM_DATA."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.max_stream_data_local = max(limit, stream.max_stream_data_local)

    def highest_of(self, stream_ids: Collection[int]) -> int:
        """Bytes that have come on these streams, gaps included."""
        streams = (self._streams.get(stream_id) for stream_id in stream_ids)
        return sum(stream.receiver.highest_offset for stream in streams if stream is not None)

    @property
    def pieces(self) -> int:
        """Separate pieces behind gaps, of all streams."""
        return sum(len(stream.receiver._ranges) for stream in self._streams.values())

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: Any, stream: Any) -> None:
        if stream.max_stream_data_local == stream.max_stream_data_local_sent:
            return  # nothing to say; asked for every stream in every packet
        receiver = stream.receiver
        highest, receiver.highest_offset = receiver.highest_offset, 0  # or aioquic doubles the limit
        try:
            super()._write_stream_limits(builder, space, stream)
        finally:
            receiver.highest_offset = highest

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: Any) -> None:
        data, streams = self._local_max_data, self._local_max_streams_uni
        used, data.used = data.used, 0  # as above
        allowed = streams.value
        streams.value = max(streams.sent, allowed - self.streams_held)
        try:
            super()._write_connection_limits(builder, space)
        finally:
            data.used, streams.value = used, allowed

    # 3. What the peer grants, and what became of what was sent

    @property
    def data_credit(self) -> int:
        """Bytes that the peer still takes, of all streams together."""
        return self._remote_max_data - self._remote_max_data_used

    @property
    def may_open_stream(self) -> bool:
        """The peer takes one more stream."""
        return self.get_next_available_stream_id(is_unidirectional=True) // 4 < self._remote_max_streams_uni

    @property
    def first_stream_limit(self) -> int:
        """The credit that every stream of ours begins with."""
        return self._remote_max_stream_data_uni

    def stream_limit_of(self, stream_id: int) -> int:
        """Up to where the peer takes this stream."""
        return int(self._streams[stream_id].max_stream_data_remote)

    def sent_of(self, stream_id: int) -> int:
        """Bytes of a stream of ours that have been in a packet."""
        return int(self._streams[stream_id].sender.highest_offset)

    def is_acked(self, stream_id: int) -> bool:
        """The peer has all of a stream of ours, and its end; or has acknowledged our reset."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    # 4. The state of the connection

    @property
    def close_event(self) -> ConnectionTerminated | None:
        """Why it is over, as soon as it is."""
        return self._close_event

    @property
    def confirmed(self) -> bool:
        """Both sides have all keys: a code of the application can be read by the peer."""
        return self._handshake_confirmed

    # 5. Life

    def hear(self, data: bytes, address: Any, *, now: float) -> bool:
        """Take a datagram; whether the peer has sealed any packet of it."""
        before, self._close_at = self._close_at, None if self._close_at is None else math.inf
        try:
            self.receive_datagram(data, address, now)
        finally:
            heard = self._close_at not in (None, math.inf) and self._close_event is None
            if self._close_at == math.inf:
                self._close_at = before
        return heard

    # 6. The path

    @property
    def controller(self) -> Any:
        """The congestion control, which counts what it is told."""
        return self._loss._cc

    @property
    def rtt_s(self) -> tuple[float, float]:
        """Smoothed and latest; 0 before the first sample."""
        return self._loss._rtt_smoothed, self._loss._rtt_latest

    @property
    def proved_address(self) -> Any:
        """Where the peer has shown that it is, by the handshake or a challenge (RFC 9000 8); None before that."""
        return next((path.addr for path in self._network_paths if path.is_validated), None)

    def path_is_new(self) -> bool:
        """Whether the peer's host is proved to be another than when this was last asked (RFC 9000 9.4)."""
        if not (self._network_paths and self._network_paths[0].is_validated):
            return False
        before, self._path_host = self._path_host, self._network_paths[0].addr[0]
        return before not in (None, self._path_host)

    def restart_path(self) -> None:
        """Forget what the path has taught. What is under way on it counts until it is lost."""
        loss = self._loss
        before, loss._cc = self.controller, Cubic(max_datagram_size=self._max_datagram_size)
        loss._cc.count_on(before)
        loss._pto_count = 0
        loss._rtt_initialized, loss._rtt_min = False, math.inf
        loss._rtt_smoothed = loss._rtt_latest = 0.0
        self._probe_pending = True  # a ping of the public interface would wait for the window
