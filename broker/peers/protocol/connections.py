"""The connections that are up, and which of them may go. No input or output, no clock.

A peer is the name in its certificate; no claim of its own gives it more room. The engine refuses a peer's
ninth connection (`transport.engine.admission`). Where the table is full a newcomer is let in if
- another peer has at least two more connections than the newcomer's: one of those that have most loses one, or
- it is the first of its peer, and there is one that nobody needs.
So a peer with many is never let in at the cost of one with few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CONNECTIONS_MAX = 128
"""Twice the peers that may hold leases: both sides may have dialled."""
IDLE_S = 60.0
"""Who dialled closes a connection over which nothing went for so long, unless it is wanted."""
CROWDED_IDLE_S = 5.0
"""Where there is no room for a peer's first, one that nobody needs goes after so long already."""


@dataclass(eq=False)
class Connection:
    """One that is up.

    Fields: `address` the peer's when it came up, proved by the handshake; `certified` whether the peer's certificate
    names it; `run` the start of the peer's broker; `dialled` by us; `used_s` when a message last went either way.
    """

    number: int
    peer: str
    address: str
    run: bytes
    engine: str
    certified: bool
    dialled: bool
    since_s: float
    used_s: float


class Connections:
    """All of them, by number."""

    def __init__(self) -> None:
        self._by_number: dict[int, Connection] = {}

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_number.values()))

    def get(self, number: int | None) -> Connection | None:
        """The one with that number."""
        return self._by_number.get(number) if number is not None else None

    def add(self, connection: Connection) -> None:
        """One more is up."""
        self._by_number[connection.number] = connection

    def remove(self, connection: Connection) -> None:
        """One is over."""
        del self._by_number[connection.number]

    @property
    def full(self) -> bool:
        """No more may be added."""
        return len(self._by_number) >= CONNECTIONS_MAX

    def to(self, address: str, *, peer: str | None = None) -> Connection | None:
        """The oldest to an address, and to a peer there where one is named."""
        return next((one for one in self if one.address == address and peer in (None, one.peer)), None)

    def in_use(self) -> list[Connection]:
        """Of each address the one that messages to it go over, as `to` gives it: what another one measures is no
        message's, but what keeps it alive, once a second."""
        return list({one.address: one for one in reversed(list(self))}.values())

    def knows(self, peer: str) -> bool:
        """Whether there is any to a peer."""
        return any(one.peer == peer for one in self)

    def idle(self, is_needed: Callable[[Connection], bool], *, now_s: float) -> list[Connection]:
        """Those that we dialled and that have served; one that is needed counts as used."""
        for one in self:
            if one.dialled and is_needed(one):
                one.used_s = now_s
        return [one for one in self if one.dialled and now_s - one.used_s > IDLE_S]

    def to_displace(self, peer: str, is_needed: Callable[[Connection], bool], *, now_s: float) -> Connection | None:
        """The one to close for one more of `peer` where there is no room, if any may be closed."""
        counts = Counter(one.peer for one in self)
        most = max(counts.values())
        if most >= counts[peer] + 2:
            among = [one for one in self if counts[one.peer] == most]
        elif peer not in counts:
            among = [one for one in self if now_s - one.used_s > CROWDED_IDLE_S and not is_needed(one)]
        else:
            among = []
        return min(among, key=lambda one: (is_needed(one), one.used_s), default=None)
