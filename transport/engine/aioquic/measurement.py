"""aioquic's CUBIC, with the counters that `ConnectionStatistics` has and aioquic does not keep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl


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
