"""What an operator sees of the other brokers. Values alone."""

from __future__ import annotations

from msgspec import Struct


class PeerStatus(Struct, frozen=True):
    """One broker, or one address at which none could be reached.

    `peer` is the name in its certificate, empty as long as nobody answered. `state` is `connected`, `dialling`, or why
    there is no connection. `leases` counts those that it has of us; `asked` is whether we have one of it.
    """

    address: str
    peer: str = ""
    state: str = "connected"
    engine: str = ""
    rtt_s: float | None = None
    rtt_s_min: float | None = None
    rtt_latest_s: float | None = None
    leases: int = 0
    asked: bool = False
