"""What brokers ask of each other: hold a class back towards whoever asks, for a while. Values alone: no I/O, no clock.

The receiver of a flood knows what its link takes and when its training needs it; only the sender can hold the flood
back. So the receiver's broker asks the sender's (`hive-broker/1`), and what it gets is a lease that ends by itself.
"""

from __future__ import annotations

from msgspec import Struct

from broker.model.reasons import Reason

HELD_CLASS = "storage"
"""The only class that may be held back from outside (docs/reference/broker-protocol.md)."""
LEASE_S_MAX = 2.0
"""A lease ends after this unless it is asked for again: a broker that dies holds nobody back for longer."""


class Hold(Struct, frozen=True):
    """What this host wants of the broker of one sender, from now on.

    Fields: `address` the sender's, a literal IPv4 or IPv6 address; `rate_bits_per_s` what all of `traffic_class` may
    send towards us, on the wire; `capacity_bits_per_s` what our link takes from everybody together, of which the
    sender's promise to its class is a part; `lease_s` for how long, at most `LEASE_S_MAX`.
    """

    address: str
    traffic_class: str
    rate_bits_per_s: int
    capacity_bits_per_s: int
    lease_s: float
    reason: Reason


class Lease(Struct, frozen=True):
    """What another broker has asked of us and is still in force; whether it is kept is for the decision to say.

    Fields: `peer` the name in its certificate; `address` the one from which it asks, validated by QUIC, and the only
    one towards which anything is held back; `number` grows with each request of a peer; `remaining_s` until it ends.
    """

    peer: str
    address: str
    number: int
    traffic_class: str
    rate_bits_per_s: int
    capacity_bits_per_s: int
    age_s: float
    remaining_s: float


class HoldOutcome(Struct, frozen=True):
    """What the decision made of a lease: the rate in force, which may be more than was asked for, or a refusal."""

    peer: str
    address: str
    number: int
    granted: bool
    rate_bits_per_s: int
    reason: Reason
