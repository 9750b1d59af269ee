"""What waits in this host where no counter shows it: in a program's hands, or on its way from there to its leaf.

A transport hands the kernel a few packets at a time, and more when most of them have gone; what it asks a peer
meanwhile waits for that. Our native engine at 4.4 Mbit/s: 36 ms, of which the leaf's backlog explained 11. At 30 Mbit/s
that is lost in the jitter; on a slow uplink it is more than the delay that means a queue elsewhere. The law took it for
one, cut to what left while it drained, and never rose again (4.2 of 10 Mbit/s for 17 s; simulated, 20 Mbit/s that fell
to 6 and rose to 14: never above 6). So no threshold is shorter than what these bytes take at the rate of the moment, as
CoDel's target is no shorter than a packet takes (RFC 8289, section 4.4).
"""

from __future__ import annotations

UNSEEN_BYTES = 16_000
"""Ten packets and a half. Measured with pieces of two packets: 18 to 20 KB in all, 6 to 7 of them the leaf's; with
pieces of one about half. Less, and rises are lost (simulated, 12 KB: one of four); more, and people wait longer before
a probe has failed. It matters below 13 Mbit/s."""
UNSEEN_S_MAX, PACKETS, PACKET_BYTES = 0.2, 2, 1_514
"""Arrivals are kept for two seconds, and people wait: below 0.64 Mbit/s that is the most, or two packets, which at 0.12
Mbit/s take as long. With half of it a rise from 0.9 Mbit/s was lost (simulated, one of four)."""


def at_least(threshold_s: float, rate_bits_per_s: float) -> float:
    """A threshold for a queue elsewhere, where packets leave at a rate."""
    most_s = max(UNSEEN_S_MAX, PACKETS * PACKET_BYTES * 8 / rate_bits_per_s)
    return max(threshold_s, min(UNSEEN_BYTES * 8 / rate_bits_per_s, most_s))
