"""What a client of a session reports of one of its connections."""

from __future__ import annotations

from msgspec import Struct


class ConnectionReport(Struct, frozen=True):
    """What one connection of the client measures: the fields of `broker.model.values.FlowSample`."""

    peer: str
    port: int
    traffic_class: str
    rtt_s: float | None
    rtt_latest_s: float | None
    rtt_s_min: float | None
    one_way_s: float | None
    one_way_age_s: float | None
    delivered_bytes: int | None
    sent_packets: int | None
    lost_packets: int | None
    delivery_rate_bits_per_s: int | None
    application_limited: bool
    inbound_s: float | None = None
    inbound_age_s: float | None = None
    received_bytes: int | None = None
