"""Which peers are connected, who dials whom and when, and when a peer counts as gone. A state machine without I/O.

    NEW    -> UP       a first connection came up
    UP     -> LOST     its last connection ended; both sides dial again at once, then with back-off
    LOST   -> UP       reconnected: operations go on where they were
    LOST   -> DEAD     not reconnected within `reconnect_s`
    LOST   -> DEAD     another rank says that it is dead
    any    -> LEFT     it said that it leaves
    any    -> EVICTED  it says that we count as gone: it goes on without us, for good

- Between two ranks the smaller one dials. The larger one dials too when nothing has arrived within `DIAL_OTHER_S`: one
  reachable side is enough. When both succeed, both sides prefer the connection that the smaller rank dialled.
- A lost connection that has carried a message is dialled again at once. Other attempts back off, also those that
  succeed.
- A rank whose address changes dials everybody to whom it has no connection left, and says where it is now. A peer that
  had dialled the old address learns from that that nobody is there any more. Ranks of one host move together, and dial
  each other again.
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
class _Channel:
    """The connections of one kind (compute or bulk) to one peer, and when to dial the next one."""

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
    compute: _Channel
    bulk: _Channel
    moves: int = 0
    phase: Phase = Phase.NEW
    lost_s: float = 0.0
    reason: str = ""
    error: ConnectionLostError | None = None

    def channel(self, *, bulk: bool) -> _Channel:
        return self.bulk if bulk else self.compute


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
        self._by_connection: dict[int, tuple[int, bool]] = {}
        self.peers: dict[int, Peer] = {}
        for contact in contacts:
            wait_s = 0.0 if rank < contact.rank else DIAL_OTHER_S
            self.peers[contact.rank] = Peer(
                contact.rank,
                contact.name,
                compute=_Channel(True, contact.address, now_s + wait_s),
                bulk=_Channel(False, contact.bulk_address, now_s),
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
            for bulk, channel in ((False, peer.compute), (True, peer.bulk)):
                if channel.wanted and not channel.connections and not channel.dialling and now_s >= channel.next_dial_s:
                    channel.dialling = True
                    actions.append(Dial(peer.rank, bulk))
        return actions

    def up(self, rank: int, connection: int, *, bulk: bool, dialled: bool) -> bool:
        """A connection to `rank` came up; whether it is wanted (not from a rank that is gone)."""
        peer = self.peers[rank]
        channel = peer.channel(bulk=bulk)
        if dialled:
            channel.dialling = False
        if peer.phase in _ENDED:
            return False
        channel.connections[connection] = (self._rank < rank) == dialled
        channel.wanted = True
        self._by_connection[connection] = (rank, bulk)
        if not bulk:
            peer.phase = Phase.UP
        return True

    def delivered(self, rank: int, *, bulk: bool) -> None:
        """A message went through: a loss of this connection is dialled again at once."""
        channel = self.peers[rank].channel(bulk=bulk)
        channel.back_off_s = BACK_OFF_S_FIRST
        channel.fresh = True

    def dial_failed(self, rank: int, *, bulk: bool, now_s: float) -> None:
        """An attempt that `due` asked for came to nothing."""
        peer = self.peers[rank]
        channel = peer.channel(bulk=bulk)
        channel.dialling = False
        channel.wait(now_s)

    def down(self, connection: int, *, reason: str, now_s: float) -> int | None:
        """A connection ended. Returns its rank when that has no other of the kind left."""
        if connection not in self._by_connection:
            return None
        rank, bulk = self._by_connection.pop(connection)
        peer = self.peers[rank]
        channel = peer.channel(bulk=bulk)
        channel.connections.pop(connection, None)
        if channel.connections:
            return None
        if channel.fresh:
            channel.fresh = False
            channel.next_dial_s = now_s
        else:
            channel.wait(now_s)
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
        for channel, new in ((peer.compute, address), (peer.bulk, bulk_address)):
            if channel.address != new:
                channel.address = new
                ours = self._rank < rank
                stale += [connection for connection, by_smaller in channel.connections.items() if by_smaller == ours]
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
            for channel in (peer.compute, peer.bulk):
                if channel.address[0] == old != new:
                    channel.address = (new, channel.address[1])
                    stale += channel.connections
                channel.next_dial_s = min(channel.next_dial_s, now_s)
                channel.back_off_s = BACK_OFF_S_FIRST
                channel.fresh = True
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
        connections = peer.channel(bulk=bulk).connections
        preferred = [connection for connection, by_smaller in connections.items() if by_smaller]
        return max(preferred or connections, default=None)

    def rank_of(self, connection: int) -> int | None:
        """The rank at the other end."""
        known = self._by_connection.get(connection)
        return None if known is None else known[0]

    def address(self, rank: int, *, bulk: bool) -> Address:
        """Where to dial."""
        peer = self.peers[rank]
        return peer.channel(bulk=bulk).address

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
                channel.next_dial_s
                for channel in (peer.compute, peer.bulk)
                if channel.wanted and not channel.connections and not channel.dialling
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
