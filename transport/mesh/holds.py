"""What ranks asked to have held back: by the connection over which they said so, with which it ends.

It is messages of collectives that have not begun there (`transport.engine.base.Hold`). As
`native/src/collective/holds.rs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from transport.engine.base import HOLDS_MAX, Hold
from transport.wire.header import Header, Kind


class Holds:
    """Of all connections."""

    def __init__(self) -> None:
        self._held: dict[int, set[tuple[str, int]]] = {}

    def heard(self, hold: Hold) -> bool:
        """Take what a receiver says; whether that changes anything."""
        held, one = self._held.setdefault(hold.connection, set()), (hold.group, hold.step)
        if (one in held) is hold.waits or (hold.waits and len(held) >= HOLDS_MAX):
            return False
        held ^= {one}
        return True

    def forget(self, connection: int) -> bool:
        """It has ended; whether something was held back there."""
        return bool(self._held.pop(connection, None))

    def count(self, connections: Sequence[int]) -> int:
        """How many there are over these connections."""
        return sum(len(self._held.get(connection, ())) for connection in connections)

    def hold(self, connections: Sequence[int], header: Header) -> bool:
        """Whether a message waits that could go over these connections."""
        if not self._held or header.kind is not Kind.COLLECTIVE:
            return False
        held = (one for connection in connections for one in self._held.get(connection, ()))
        return any(group == header.group and step <= header.step for group, step in held)
