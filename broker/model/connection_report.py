"""What a client of a session reports of one of its connections."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from broker.policy.types import TrafficClass
from hive_qos.units import RATE_BITS_PER_S_MAX

BYTES_MAX = 2**50
"""A petabyte: beyond every burst and every connection's life so far; keeps sums far from overflow."""
DURATION_S_MAX = 3600.0
"""Round trips, ages, deadlines and forecasts are cut to an hour: longer ones say no more, and sums stay small."""
CLOCK_S_MAX = 1e10
"""Between two hosts' monotonic clocks: three hundred years of uptime."""

Count = Annotated[int, Meta(ge=0, le=BYTES_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=CLOCK_S_MAX)]


class Endpoint(str):
    """The other end of a connection as one text, "10.0.0.2:4242", and its parts."""

    address: str
    port: int

    def __new__(cls, address: str, port: int) -> Endpoint:
        made = super().__new__(cls, f"{address}:{port}")
        made.address, made.port = address, port
        return made


class ConnectionReport(Struct, frozen=True, kw_only=True):
    """What one connection of the client measures: the fields of `broker.model.values.FlowSample`.

    A delay that rests on the peer's clock is cut to `CLOCK_S_MAX`: a peer whose clock is wrong costs no report. Round
    trips and ages are cut to `DURATION_S_MAX`.
    """

    peer: Endpoint
    traffic_class: TrafficClass = field(name="class", default="compute")
    rtt_s: Seconds | None = None
    rtt_latest_s: Seconds | None = None
    rtt_s_min: Seconds | None = None
    one_way_s: float | None = None
    one_way_age_s: Seconds | None = None
    inbound_s: float | None = None
    inbound_age_s: Seconds | None = None
    delivered_bytes: Count | None = None
    received_bytes: Count | None = None
    sent_packets: Count | None = None
    lost_packets: Count | None = None
    delivery_rate_bits_per_s: Annotated[int, Meta(ge=0, le=RATE_BITS_PER_S_MAX)] | None = None
    application_limited: bool = False

    def __post_init__(self) -> None:
        for name in ("rtt_s", "rtt_latest_s", "rtt_s_min", "one_way_age_s", "inbound_age_s"):
            if (getattr(self, name) or 0.0) > DURATION_S_MAX:
                force_setattr(self, name, DURATION_S_MAX)
        if self.one_way_s is not None and abs(self.one_way_s) > CLOCK_S_MAX:
            force_setattr(self, "one_way_s", max(-CLOCK_S_MAX, min(CLOCK_S_MAX, self.one_way_s)))
        if self.inbound_s is not None and abs(self.inbound_s) > CLOCK_S_MAX:
            force_setattr(self, "inbound_s", max(-CLOCK_S_MAX, min(CLOCK_S_MAX, self.inbound_s)))
