"""The `static` phase: the best fixed HTB tree that a careful administrator can write with tc, once.

He knows that the uplink is 20 Mbit/s, gives training strict priority, and lets storage borrow whatever training leaves.
"""

from __future__ import annotations

from tools.demo.storage import PORT
from tools.measure.fixed import FixedTree

STORAGE_SHARE = 0.02
"""What storage has at every moment, as the broker's floor is: more of it lengthens every step."""


def tree(rate_bits_per_s: int) -> FixedTree:
    """His tree for an uplink of a rate."""
    return FixedTree(rate_bits_per_s=rate_bits_per_s, storage_share=STORAGE_SHARE, borrowing=True, port=PORT)
