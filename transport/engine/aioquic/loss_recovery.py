"""aioquic's loss recovery, made cheaper for long flights, with our pacing, measurements and bulk controller.

What differs from aioquic's own: an acknowledgement costs as much as the packets that it newly acknowledges (not a pass
over all in flight); numbers that were never sent are not believed; the window does not grow while the application is
what limits it (RFC 9002 7.8); the pacing rate is 1.25 windows a round trip, twice that in slow start (RFC 9002 7.7).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

from aioquic.quic.congestion.base import (
    QuicCongestionControl,
    create_congestion_control,
    register_congestion_control,
)
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketRecovery, QuicPacketSpace

from transport.engine.congestion.cubic import Cubic
from transport.engine.congestion.delay_bound import DelayBound
from transport.engine.congestion.pacer import Pacer
from transport.engine.congestion.path_estimates import DeliveryRate, RttWindow
from transport.engine.congestion.rate_following import EndpointRate, FollowsRate

BULK_CONTROLLER = "hive-delay-bound"
CUBIC_CONTROLLER = "hive-cubic"
RATE_CONTROLLER = "hive-rate"


class SentPacket:
    """What has to be known of a packet until it is acknowledged or lost; the fields are aioquic's, without a dict."""

    __slots__ = (
        "delivery_handlers",
        "epoch",
        "in_flight",
        "is_ack_eliciting",
        "is_crypto_packet",
        "packet_number",
        "packet_type",
        "sent_bytes",
        "sent_time",
    )

    def __init__(self, epoch: Any, packet_type: Any, packet_number: int, sent_time: float) -> None:
        self.epoch = epoch
        self.packet_type = packet_type
        self.packet_number = packet_number
        self.sent_time = sent_time
        self.sent_bytes = 0
        self.in_flight = False
        self.is_ack_eliciting = False
        self.is_crypto_packet = False
        self.delivery_handlers: list[tuple[Any, Any]] = []


class _Control(QuicCongestionControl):
    """What our controllers have in common in aioquic's clothes."""

    bound: Cubic | DelayBound | FollowsRate

    def on_packet_sent(self, *, packet: Any) -> None:
        self.bytes_in_flight += packet.sent_bytes

    def on_packets_expired(self, *, packets: Iterable[Any]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: Any) -> None:
        self.bytes_in_flight -= packet.sent_bytes
        self.bound.on_acked(packet.sent_bytes, now_s=now)
        self.congestion_window = self.bound.allowed_bytes()

    def on_packets_lost(self, *, now: float, packets: Iterable[Any]) -> None:
        latest = 0.0
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            latest = max(latest, packet.sent_time)
        self.bound.on_loss(now_s=now, sent_at_s=latest)
        self.congestion_window = self.bound.allowed_bytes()

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        self.bound.on_rtt(rtt, now_s=now)
        self.congestion_window = self.bound.allowed_bytes()


class CubicControl(_Control):
    """`Cubic`."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.bound: Cubic = Cubic(packet_bytes=max_datagram_size)

    def on_packet_sent(self, *, packet: Any) -> None:
        self.bound.on_sent(now_s=packet.sent_time)
        self.congestion_window = self.bound.allowed_bytes()
        super().on_packet_sent(packet=packet)

    def on_persistent_congestion(self) -> None:
        self.bound.on_persistent_congestion()
        self.congestion_window = self.bound.allowed_bytes()


class DelayBoundControl(_Control):
    """`DelayBound`."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.bound: DelayBound = DelayBound(packet_bytes=max_datagram_size)

    def on_persistent_congestion(self) -> None:
        self.bound.on_loss(now_s=math.inf, sent_at_s=math.inf)
        self.congestion_window = self.bound.allowed_bytes()


class RateControl(_Control):
    """`FollowsRate`."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.bound: FollowsRate = FollowsRate(packet_bytes=max_datagram_size)

    def on_packet_sent(self, *, packet: Any) -> None:
        self.bound.on_sent(packet.sent_bytes, now_s=packet.sent_time)
        self.congestion_window = self.bound.allowed_bytes()
        super().on_packet_sent(packet=packet)

    def on_progress(self, *, acked_bytes: int, lost_bytes: int, limited: bool, now: float) -> None:
        """What one acknowledgement told, when all of it was taken in."""
        self.bound.on_progress(acked_bytes=acked_bytes, lost_bytes=lost_bytes, limited=limited, now_s=now)
        self.congestion_window = self.bound.allowed_bytes()

    def on_persistent_congestion(self) -> None:
        self.bound.on_persistent_congestion()
        self.congestion_window = self.bound.allowed_bytes()


register_congestion_control(BULK_CONTROLLER, DelayBoundControl)
register_congestion_control(RATE_CONTROLLER, RateControl)
register_congestion_control(CUBIC_CONTROLLER, CubicControl)


class Recovery(QuicPacketRecovery):
    """Loss recovery of one connection."""

    def __init__(self, *, bulk: bool, max_datagram_size: int, **options: Any) -> None:
        super().__init__(max_datagram_size=max_datagram_size, **options)
        self._make_controller = functools.partial(
            create_congestion_control, options["congestion_control_algorithm"], max_datagram_size=max_datagram_size
        )
        # Bulk in bits of 1 ms, so that a control message never waits behind more; else 2 ms, for fewer wake-ups.
        self._make_pacer = functools.partial(
            Pacer, burst_s=0.002 if bulk else 0.004, burst_bytes_min=(2 if bulk else 10) * max_datagram_size
        )
        self.pacer = self._make_pacer()
        self.rtt_window = RttWindow()
        self.delivery = DeliveryRate()
        self.lost_packets = 0
        self.sent_packets = 0
        self.sent_bytes = 0
        self.next_packet_number = 0
        self.window_limited_number = 0
        self._first_of_path = 0
        self.application_limited = False
        self._judged_bytes = self._judged_lost = 0

    def restart(self) -> None:
        """The path is a new one: forget what the old one taught. What is under way on it counts until it is lost."""
        before = self._cc
        self._cc = self._make_controller()
        self._cc.bytes_in_flight = before.bytes_in_flight
        if isinstance(before, RateControl):
            before.bound.endpoint.forget(before.bound)
            self.follow(before.bound.endpoint)
        self._first_of_path = self.next_packet_number
        self._pto_count = 0
        self._rtt_initialized = False
        self._rtt_min = math.inf
        self._rtt_latest = self._rtt_smoothed = self._rtt_variance = 0.0
        self.rtt_window = RttWindow()
        self.pacer = self._make_pacer()
        self._judged_bytes = self._judged_lost = 0

    def on_packet_sent(self, *, packet: Any, space: QuicPacketSpace) -> None:
        number = packet.packet_number
        space.sent_packets[number] = packet
        if packet.in_flight:
            if packet.is_ack_eliciting:
                space.ack_eliciting_in_flight += 1
                # Before the handshake is confirmed, application data does not arm the probe timer (RFC 9002 6.2.1).
                if self.handshake_confirmed or not space.is_application_data:
                    self._time_of_last_sent_ack_eliciting_packet = packet.sent_time
            self._cc.on_packet_sent(packet=packet)
            if isinstance(self._cc, RateControl):
                self.update_pacing()
        self.sent_packets += 1
        self.next_packet_number = number + 1
        self.sent_bytes += packet.sent_bytes

    def on_ack_received(
        self, *, ack_rangeset: RangeSet | list[range], ack_delay: float, now: float, space: QuicPacketSpace
    ) -> None:
        sent = space.sent_packets
        largest = -1
        for acked in ack_rangeset:
            largest = max(largest, acked.stop - 1)
        if largest >= self.next_packet_number:
            largest = self.next_packet_number - 1  # an acknowledgement of what was never sent proves nothing
        if largest > space.largest_acked_packet:
            space.largest_acked_packet = largest
        if not sent:
            return
        eliciting = False
        newest: Any = None
        oldest_number = next(iter(sent))
        for acked in ack_rangeset:
            for number in range(max(acked.start, oldest_number), min(acked.stop, largest + 1)):
                packet: Any = sent.pop(number, None)
                if packet is None:
                    continue
                if packet.is_ack_eliciting:
                    eliciting = True
                    space.ack_eliciting_in_flight -= 1
                if packet.in_flight:
                    self.delivery.on_acked(packet.sent_bytes)
                    idle = number >= self.window_limited_number and space.is_application_data
                    if idle or number < self._first_of_path:
                        # Sent since the window last held anything back, or over another path: says nothing about a
                        # larger one.
                        self._cc.bytes_in_flight -= packet.sent_bytes
                    else:
                        self._cc.on_packet_acked(packet=packet, now=now)
                if newest is None or number > newest.packet_number:
                    newest = packet
                for handler, arguments in packet.delivery_handlers:
                    handler(QuicDeliveryState.ACKED, *arguments)
        if newest is None:
            return
        if newest.packet_number == largest >= self._first_of_path and eliciting:
            self._take_rtt(now - newest.sent_time, ack_delay_s=min(ack_delay, self.max_ack_delay), now=now)
        self._detect_loss(now=now, space=space)
        if self.peer_completed_address_validation:
            self._pto_count = 0
        self.delivery.update(now_s=now)
        if isinstance(self._cc, RateControl):
            self._tell_progress(self._cc, now)
        self.update_pacing()

    def follow(self, rate: EndpointRate) -> None:
        """Follow this rate, where the congestion control does."""
        if isinstance(self._cc, RateControl):
            self._cc.bound.endpoint = rate

    def ended(self) -> None:
        """The connection is over: its part of a rate is the others'."""
        if isinstance(self._cc, RateControl):
            self._cc.bound.endpoint.forget(self._cc.bound)

    def _tell_progress(self, controller: RateControl, now: float) -> None:
        controller.on_progress(
            acked_bytes=self.delivery.delivered_bytes - self._judged_bytes,
            lost_bytes=(self.lost_packets - self._judged_lost) * controller.bound.packet_bytes,
            limited=self.application_limited,
            now=now,
        )
        self._judged_bytes, self._judged_lost = self.delivery.delivered_bytes, self.lost_packets

    def update_pacing(self) -> None:
        """Set the pacing rate from window and round trip."""
        if self._rtt_initialized:
            ours = self._cc.bound if isinstance(self._cc, _Control) else None
            if isinstance(ours, FollowsRate) and ours.pace_bytes_per_s is not None:
                self.pacer.set_rate(ours.pace_bytes_per_s)
                return
            slow_start = self._cc.ssthresh is None if ours is None else ours.slow_start
            gain = 2.0 if slow_start else 1.25
            self.pacer.set_rate(gain * self._cc.congestion_window / max(self._rtt_smoothed, 0.0005))

    def _take_rtt(self, rtt: float, *, ack_delay_s: float, now: float) -> None:
        """RFC 9002 5.3, and the samples that the controllers and statistics want."""
        rtt = max(rtt, 0.0001)
        self._rtt_min = min(self._rtt_min, rtt)
        adjusted = rtt - ack_delay_s if rtt >= self._rtt_min + ack_delay_s else rtt
        self._rtt_latest = adjusted
        if not self._rtt_initialized:
            self._rtt_initialized = True
            self._rtt_first_sample_time = now
            self._rtt_smoothed = rtt
            self._rtt_variance = rtt / 2
        else:
            self._rtt_variance += (abs(self._rtt_smoothed - adjusted) - self._rtt_variance) / 4
            self._rtt_smoothed += (adjusted - self._rtt_smoothed) / 8
        self.rtt_window.add(adjusted, now_s=now)
        self._cc.on_rtt_measurement(now=now, rtt=adjusted)

    def _on_packets_lost(self, *, packets: Any, congestion_event: bool = True, **options: Any) -> None:
        if not packets:
            return
        if congestion_event:
            self.lost_packets += len(packets)
            congestion_event = packets[-1].packet_number >= self._first_of_path  # else of the path before
        super()._on_packets_lost(packets=packets, congestion_event=congestion_event, **options)
