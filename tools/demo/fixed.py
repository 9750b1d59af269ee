"""The `static` phase: a fixed HTB tree with priority, as a careful administrator writes it with tc, once.

He knows that the uplink is 20 Mbit/s, gives training first call on everything and storage a guarantee of 20 %, and lets
either borrow what the other leaves.
"""

from __future__ import annotations

from tools.demo.storage import PORT
from tools.measure.fixed import FixedTree

STORAGE_SHARE = 0.2
"""The guarantee that the broker's configuration gives storage, too."""


def tree(rate_bits_per_s: int) -> FixedTree:
    """His tree for an uplink of a rate."""
    return FixedTree(rate_bits_per_s=rate_bits_per_s, storage_share=STORAGE_SHARE, borrowing=True, port=PORT)
