"""What an operator sees of the other brokers. Values alone."""

from __future__ import annotations

from msgspec import Struct


class PeerStatus(Struct, frozen=True):
    """One broker, or one address at which none could be reached.

    Fields: `address` the other end's; `peer` the name in its certificate, "" as long as nobody answered; `state`
    "connected", "dialling", "no broker answers; ...", "refused: ..." (who answered is not to be talked to, or does not
    talk to us); `engine` that it runs; `rtt_s` measured, `rtt_s_min` the least of it, `rtt_latest_s` the last; `leases`
    how many it has of us; `asked` whether we hold one.
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
