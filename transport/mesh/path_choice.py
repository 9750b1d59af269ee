"""Over which of several connections to a rank the next message goes: the one over which it is through first. Pure.

As `native/src/collective/path_choice.rs`, which has the reasons, for what Python sends: messages between two ranks, and
collectives that the engine does not carry out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

UNKNOWN_BYTES_MAX = 2**20
MEASURED_BYTES_MIN = 64 * 2**10
REMEMBERED_BYTES = 1.5 * 2**20
DOUBLES_AFTER_S = 30.0


@dataclass
class PathLoad:
    """What is known of a connection's path."""

    under_way_bytes: int = 0
    s_per_byte: float | None = None
    landed_s: float = 0.0

    def landed(self, nbytes: int, *, sent_s: float, rtt_s: float, now_s: float, well: bool) -> None:
        """A message that was sent at a time is through, or it failed."""
        self.under_way_bytes -= nbytes
        if not well or nbytes < MEASURED_BYTES_MIN:
            return
        took = max(now_s - max(self.landed_s, sent_s + rtt_s), 0.0) / nbytes
        weight = nbytes / (nbytes + REMEMBERED_BYTES)
        self.s_per_byte = took if self.s_per_byte is None else self.s_per_byte + weight * (took - self.s_per_byte)
        self.landed_s = now_s

    def has_room(self, nbytes: int) -> bool:
        """Not for much where nothing is known; what is small waits for nothing."""
        free = self.s_per_byte is not None or not self.under_way_bytes or nbytes < MEASURED_BYTES_MIN
        return free or self.under_way_bytes + nbytes <= UNKNOWN_BYTES_MAX

    def through_after_s(self, nbytes: int, *, rtt_s: float, now_s: float) -> float:
        """When a message would be through."""
        fresh = math.exp2(-(now_s - self.landed_s) / DOUBLES_AFTER_S)
        return (self.under_way_bytes + nbytes) * (self.s_per_byte or 0.0) * fresh + rtt_s / 2


class PathLoads:
    """The loads of all connections.

    Args:
        round_trips: the shortest one of each connection at a time, in seconds; asked only where there is a choice.
    """

    def __init__(self, round_trips: Callable[[float], Mapping[int, float]]) -> None:
        self._round_trips = round_trips
        self._loads: dict[int, PathLoad] = {}

    def choose(self, connections: Sequence[int], nbytes: int, *, now_s: float) -> int | None:
        """The connection for a message, or None where it has to wait for room."""
        if len(connections) == 1:
            return connections[0]
        rtt_s = self._round_trips(now_s)
        loads = [(one, self._loads.get(one) or PathLoad()) for one in connections]
        times = [
            (load.through_after_s(nbytes, rtt_s=rtt_s.get(one, 0.0), now_s=now_s), one)
            for one, load in loads
            if load.has_room(nbytes)
        ]
        return min(times)[1] if times else None

    def sent(self, connection: int, nbytes: int) -> None:
        """A message is under way."""
        self._loads.setdefault(connection, PathLoad()).under_way_bytes += nbytes

    def landed(self, connection: int, nbytes: int, *, sent_s: float, now_s: float, well: bool) -> None:
        """A message that was sent at a time is through, or it failed."""
        load = self._loads.get(connection)
        if load is not None:
            measured = well and nbytes >= MEASURED_BYTES_MIN
            rtt_s = self._round_trips(now_s).get(connection, 0.0) if measured else 0.0
            load.landed(nbytes, sent_s=sent_s, rtt_s=rtt_s, now_s=now_s, well=well)

    def forget(self, connection: int) -> None:
        """It has ended."""
        self._loads.pop(connection, None)
