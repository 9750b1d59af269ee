"""Which peers are connected, who dials whom and when, and when a peer counts as gone. A state machine without I/O.

    NEW    -> UP       a first connection came up
    UP     -> LOST     its last connection ended; both sides dial again at once, then with back-off
    LOST   -> UP       reconnected: operations go on where they were
    LOST   -> DEAD     not reconnected within `reconnect_s`
    any    -> LEFT     it said that it leaves
    LOST   -> DEAD     another rank says that it is dead
    any    -> EVICTED  it says that we count as gone: it goes on without us, for good

Between two ranks the smaller one dials, and the larger one too when nothing has arrived within `DIAL_OTHER_S`: one
reachable side is enough. When both succeed, both sides prefer the connection that the smaller rank dialled. A lost
connection is dialled again at once when it has carried a message; otherwise attempts back off, those that succeed too.
When the address of a rank changes, it dials everybody to whom it has no connection left, and says where it is now: who
had dialled it learns from that that nobody is there any more. Ranks of one host move together, and dial each other
again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from hive_qos.errors import ConnectionLostError
from transport.engine.base import Address

DIAL_OTHER_S = 1.0
"""How long the larger rank waits to be dialled. Three round trips of a bad link, and nobody minds waiting a second."""
BACK_OFF_S_FIRST = 0.1
BACK_OFF_S_MAX = 1.0


class Phase(enum.Enum):
    """Where a peer stands."""

    NEW = "not connected yet"
    UP = "connected"
    LOST = "connection lost"
    LEFT = "left"
    DEAD = "dead"
    EVICTED = "counts us as gone"


_ENDED = (Phase.LEFT, Phase.DEAD, Phase.EVICTED)


@dataclass(frozen=True)
class Dial:
    """Dial this rank now, and report to `up` or `dial_failed`."""

    rank: int
    bulk: bool


@dataclass(frozen=True)
class Gone:
    """This rank is gone for good; raised to everybody who needs it."""

    rank: int
    error: ConnectionLostError


Action: TypeAlias = Dial | Gone


@dataclass
class _Line:
    """The connections of one kind (compute or bulk) to one peer."""

    wanted: bool
    address: Address
    next_dial_s: float
    back_off_s: float = BACK_OFF_S_FIRST
    fresh: bool = True  # the next loss is dialled at once: nothing was lost yet since a message went through
    dialling: bool = False
    connections: dict[int, bool] = field(default_factory=dict)  # connection to "the smaller rank dialled it"

    def wait(self, now_s: float) -> None:
        """Dial after the back-off, and longer the next time."""
        self.next_dial_s = now_s + self.back_off_s
        self.back_off_s = min(self.back_off_s * 2, BACK_OFF_S_MAX)


@dataclass
class Peer:
    """What is known of one other rank."""

    rank: int
    name: str
    compute: _Line
    bulk: _Line
    moves: int = 0
    phase: Phase = Phase.NEW
    lost_s: float = 0.0
    reason: str = ""
    error: ConnectionLostError | None = None


@dataclass(frozen=True)
class Contact:
    """Where a rank can be reached, and the name that its certificate must carry."""

    rank: int
    name: str
    address: Address
    bulk_address: Address


class PeerTable:
    """All other ranks of the connected group.

    Args:
        rank: our own.
        contacts: everybody else.
        reconnect_s: how long a lost connection may stay lost.
        now_s: the monotonic clock.
    """

    def __init__(self, rank: int, contacts: Iterable[Contact], *, reconnect_s: float, now_s: float) -> None:
        self._rank = rank
        self._reconnect_s = reconnect_s
        self._lines: dict[int, tuple[int, bool]] = {}
        self.peers: dict[int, Peer] = {}
        for contact in contacts:
            wait_s = 0.0 if rank < contact.rank else DIAL_OTHER_S
            self.peers[contact.rank] = Peer(
                contact.rank,
                contact.name,
                compute=_Line(True, contact.address, now_s + wait_s),
                bulk=_Line(False, contact.bulk_address, now_s),
            )

    def due(self, now_s: float) -> list[Action]:
        """What has to be done by now."""
        actions: list[Action] = []
        for peer in self.peers.values():
            if peer.phase in _ENDED:
                continue
            if peer.phase is Phase.LOST and now_s >= peer.lost_s + self._reconnect_s:
                actions.append(self._declare_dead(peer, f"{peer.reason}; not back after {self._reconnect_s:g} s"))
                continue
            for bulk, line in ((False, peer.compute), (True, peer.bulk)):
                if line.wanted and not line.connections and not line.dialling and now_s >= line.next_dial_s:
                    line.dialling = True
                    actions.append(Dial(peer.rank, bulk))
        return actions

    def up(self, rank: int, connection: int, *, bulk: bool, dialled: bool) -> bool:
        """A connection to `rank` came up; whether it is wanted (not from a rank that is gone)."""
        peer = self.peers[rank]
        line = peer.bulk if bulk else peer.compute
        if dialled:
            line.dialling = False
        if peer.phase in _ENDED:
            return False
        line.connections[connection] = (self._rank < rank) == dialled
        line.wanted = True
        self._lines[connection] = (rank, bulk)
        if not bulk:
            peer.phase = Phase.UP
        return True

    def carried(self, rank: int, *, bulk: bool) -> None:
        """A message went through: the connections to this rank are good for something."""
        line = self.peers[rank].bulk if bulk else self.peers[rank].compute
        line.back_off_s = BACK_OFF_S_FIRST
        line.fresh = True

    def dial_failed(self, rank: int, *, bulk: bool, now_s: float) -> None:
        """An attempt that `due` asked for came to nothing."""
        peer = self.peers[rank]
        line = peer.bulk if bulk else peer.compute
        line.dialling = False
        line.wait(now_s)

    def down(self, connection: int, *, reason: str, now_s: float) -> int | None:
        """A connection ended. Returns its rank when that has no other of the kind left."""
        if connection not in self._lines:
            return None
        rank, bulk = self._lines.pop(connection)
        peer = self.peers[rank]
        line = peer.bulk if bulk else peer.compute
        line.connections.pop(connection, None)
        if line.connections:
            return None
        if line.fresh:
            line.fresh = False
            line.next_dial_s = now_s
        else:
            line.wait(now_s)
        if not bulk and peer.phase is Phase.UP:
            peer.phase = Phase.LOST
            peer.lost_s = now_s
            peer.reason = reason
        return rank

    def moved(self, rank: int, *, number: int, address: Address, bulk_address: Address) -> list[int]:
        """A rank says where it is reached from now on, and that it has said so `number` times.

        Returns:
            The connections that we dialled to where it was: nobody is there any more.
        """
        peer = self.peers[rank]
        if self.is_late(rank, number):
            return []
        peer.moves = number
        stale: list[int] = []
        for line, new in ((peer.compute, address), (peer.bulk, bulk_address)):
            if line.address != new:
                line.address = new
                ours = self._rank < rank
                stale += [connection for connection, by_smaller in line.connections.items() if by_smaller == ours]
        return stale

    def is_late(self, rank: int, number: int) -> bool:
        """Whether a rank says that of a move which we know of, or of one before: it was sent again."""
        return number <= self.peers[rank].moves

    def moved_here(self, now_s: float, *, old: str, new: str) -> list[int]:
        """The address that we tell the others has changed: dial those to whom there is no connection at once.

        Ranks of the same host had the old address too, and move with it, each by itself.

        Returns:
            The connections to those: nobody is at their other ends any more.
        """
        stale: list[int] = []
        for peer in self.peers.values():
            for line in (peer.compute, peer.bulk):
                if line.address[0] == old != new:
                    line.address = (new, line.address[1])
                    stale += line.connections
                line.next_dial_s = min(line.next_dial_s, now_s)
                line.back_off_s = BACK_OFF_S_FIRST
                line.fresh = True
        return stale

    def want_bulk(self, rank: int) -> None:
        """Something is to go over the bulk connection; `due` dials it when there is none."""
        self.peers[rank].bulk.wanted = True

    def left(self, rank: int) -> Gone | None:
        """The peer said goodbye. What it has sent before is still good."""
        return self._end(rank, Phase.LEFT, "it has left the group")

    def dead(self, rank: int, reason: str) -> Gone | None:
        """It is dead. None when it was gone already."""
        return self._end(rank, Phase.DEAD, reason)

    def evicted(self, rank: int, reason: str) -> Gone | None:
        """The peer itself says that we count as gone. Nobody else is to be told: they may well count it as alive."""
        return self._end(rank, Phase.EVICTED, reason)

    def connections(self, rank: int) -> list[int]:
        """All that are up to a rank."""
        peer = self.peers[rank]
        return [*peer.compute.connections, *peer.bulk.connections]

    def route(self, rank: int, *, bulk: bool) -> int | None:
        """The connection to send over: the one that the smaller rank dialled, the newest of several."""
        peer = self.peers[rank]
        connections = (peer.bulk if bulk else peer.compute).connections
        preferred = [connection for connection, by_smaller in connections.items() if by_smaller]
        return max(preferred or connections, default=None)

    def rank_of(self, connection: int) -> int | None:
        """The rank at the other end."""
        line = self._lines.get(connection)
        return None if line is None else line[0]

    def address(self, rank: int, *, bulk: bool) -> Address:
        """Where to dial."""
        peer = self.peers[rank]
        return (peer.bulk if bulk else peer.compute).address

    def missing(self) -> list[int]:
        """Ranks that have never been connected."""
        return [peer.rank for peer in self.peers.values() if peer.phase is Phase.NEW]

    def error(self, rank: int) -> ConnectionLostError | None:
        """Why a rank is gone, or None while it is not."""
        return self.peers[rank].error

    def next_wake_s(self) -> float:
        """When `due` next has something to say, as far as is known now."""
        times = [float("inf")]
        for peer in self.peers.values():
            if peer.phase in _ENDED:
                continue
            if peer.phase is Phase.LOST:
                times.append(peer.lost_s + self._reconnect_s)
            times.extend(
                line.next_dial_s
                for line in (peer.compute, peer.bulk)
                if line.wanted and not line.connections and not line.dialling
            )
        return min(times)

    def _end(self, rank: int, phase: Phase, reason: str) -> Gone | None:
        peer = self.peers[rank]
        if peer.phase in _ENDED:
            return None
        gone = self._declare_dead(peer, reason)
        peer.phase = phase
        return gone

    def _declare_dead(self, peer: Peer, reason: str) -> Gone:
        peer.phase = Phase.DEAD
        peer.error = ConnectionLostError(peer.name, reason, rank=peer.rank)
        return Gone(peer.rank, peer.error)
