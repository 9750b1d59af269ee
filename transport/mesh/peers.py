"""Which peers are connected, who dials whom and when, and when a peer counts as gone. A state machine without I/O.

    NEW    -> UP       a first connection came up
    UP     -> LOST     its last connection ended; both sides dial again at once, then with back-off
    LOST   -> UP       reconnected: operations go on where they were
    LOST   -> DEAD     not reconnected within `reconnect_s`; at once where its process has ended, or silence means that
    LOST   -> DEAD     another rank says that it is dead
    any    -> LEFT     it said that it leaves
    any    -> EVICTED  it says that we count as gone: it goes on without us, for good

- Between two ranks the smaller one dials. The larger one dials too when nothing has arrived within `DIAL_OTHER_S`: one
  reachable side is enough. When both succeed, both sides prefer the connection that the smaller rank dialled.
- Several paths may lead to a peer (`transport.mesh.paths`). They are dialled one after the other, each `STAGGER_S`
  after the last, or as soon as that one has failed (RFC 8305). The first that answers ends this.
- Then the smaller rank dials paths over further links, and each link has a connection. Bulk takes a path of these.
- A lost connection that has carried a message is dialled again at once. Other attempts back off, also those that
  succeed.
- Of a peer that nobody reaches at the addresses that it told, other ranks may have seen another one
  (`transport.mesh.introductions`). It is a way like the others.
- A rank whose address changes dials everybody to whom it has no connection left, and says where it is now. A peer that
  had dialled the old address learns from that that nobody is there any more. Ranks of one host move together, and dial
  each other again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hive_qos.errors import ConnectionLostError
from transport.engine.base import Address
from transport.mesh.paths import Link, Location, Path, is_spare, paths_between

FIRST = 0
"""The number of the first location's interface (`sockets.locations_of`)."""
UNTOLD = -1
"""In place of an interface's number, of an address that other ranks have seen."""
SEEN_WAYS_MAX = 4
"""To such addresses. They are tried first, and a lost rank has to be found within two seconds where it says, too."""
DIAL_OTHER_S = 1.0
"""How long the larger rank waits to be dialled. Three round trips of a bad link, and nobody minds waiting a second."""
BACK_OFF_S_FIRST = 0.1
BACK_OFF_S_MAX = 1.0
REDIAL_S = 0.4
"""Between attempts to reach a lost peer, also while one is under way: QUIC repeats a first packet after 1, 3 and 7 s.
One attempt alone finds only then that a link is back."""
STAGGER_S = 0.25
"""Between attempts over one path and the next (RFC 8305, section 5)."""
SPARE_AGAIN_S = 10.0
"""After a further link could not be dialled, or was lost: a cable that is plugged in again is used within these."""
SPARE_AGAIN_S_MAX = 320.0
"""After that has happened again and again: what is under way on a link that is lost waits for `dead_after_s`, and what
cannot be reached may be somebody else's address."""


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
    """Dial this rank now over this path, and report to `up` or `dial_failed`."""

    rank: int
    bulk: bool
    path: Path

    @property
    def address(self) -> Address:
        return self.path.remote.of(bulk=self.bulk)


@dataclass(frozen=True)
class Gone:
    """This rank is gone for good; raised to everybody who needs it."""

    rank: int
    error: ConnectionLostError


@dataclass(frozen=True)
class AskForBulk:
    """Tell this rank that it is to dial us for bulk as well: it may be behind NAT, and then nobody else can."""

    rank: int


Action: TypeAlias = Dial | Gone | AskForBulk


@dataclass
class _Way:
    """A path, and when to dial it next."""

    path: Path
    next_dial_s: float
    back_off_s: float = BACK_OFF_S_FIRST
    rest_s: float = SPARE_AGAIN_S
    dialling: bool = False
    tried: bool = False  # since the race began

    @property
    def is_seen(self) -> bool:
        """It leads to an address that others have seen, and the peer did not tell."""
        return self.path.remote.interface == UNTOLD

    def wait(self, now_s: float) -> None:
        """Dial after the back-off, and longer the next time."""
        self.next_dial_s = now_s + self.back_off_s
        self.back_off_s = min(self.back_off_s * 2, BACK_OFF_S_MAX)

    def rest(self, now_s: float) -> None:
        """Leave a further link alone, and longer the next time."""
        self.next_dial_s = now_s + self.rest_s
        self.rest_s = min(self.rest_s * 2, SPARE_AGAIN_S_MAX)


@dataclass(frozen=True)
class _Connection:
    by_smaller: bool
    """The smaller rank dialled it."""
    link: Link
    address: str
    """The peer's."""


@dataclass
class _Channel:
    """The connections of one kind (compute or bulk) to one peer, and the ways to dial more."""

    wanted: bool
    ways: list[_Way]
    fresh: bool = True  # the next loss is dialled at once: nothing was lost yet since a message went through
    connections: dict[int, _Connection] = field(default_factory=dict)
    by_link: Mapping[Link, int] = field(default_factory=dict)
    """Of each link the connection that the smaller rank dialled, the newest of several."""
    look_s: float = 0.0
    """Further links are looked for from then on: a peer may say as often as it likes that it has moved."""

    def choose_by_link(self) -> None:
        """After a connection has come or gone."""
        order = sorted(self.connections.items(), key=lambda item: (item[1].by_smaller, item[0]))
        self.by_link = {one.link: number for number, one in order}

    def race(self, now_s: float) -> None:
        """Dial one way after the other from now on."""
        for place, way in enumerate(self.ways):
            way.next_dial_s, way.tried = now_s + place * STAGGER_S, way.dialling

    def failed(self, way: _Way, now_s: float) -> None:
        """A way led nowhere: those that are next need not wait for it any longer."""
        way.wait(now_s)
        untried = [other for other in self.ways if not other.tried]
        early_s = max(untried[0].next_dial_s - now_s, 0.0) if untried else 0.0
        for other in untried:
            other.next_dial_s -= early_s

    def rest(self, link: Link, of: Callable[[_Way], Link], now_s: float) -> None:
        """A link was lost while there are others."""
        for way in self.ways:
            if of(way) == link:
                way.rest(now_s)


@dataclass
class Peer:
    """What is known of one other rank."""

    rank: int
    name: str
    locations: tuple[Location, ...]
    compute: _Channel
    bulk: _Channel
    moves: int = 0
    bulk_asked: bool = False
    phase: Phase = Phase.NEW
    dead_s: float = math.inf
    """When a lost one counts as dead."""
    reason: str = ""
    error: ConnectionLostError | None = None

    def channel(self, *, bulk: bool) -> _Channel:
        return self.bulk if bulk else self.compute

    @property
    def interfaces(self) -> int:
        """How many it has."""
        return len({one.interface for one in self.locations})

    def interface_of(self, address: str) -> int:
        """Of one of its addresses; UNTOLD of one that it did not tell (behind NAT)."""
        return next((one.interface for one in self.locations if one.address == address), UNTOLD)


@dataclass(frozen=True)
class Contact:
    """Where a rank can be reached, and the name that its certificate must carry."""

    rank: int
    name: str
    locations: tuple[Location, ...]


class PeerTable:
    """All other ranks of the connected group.

    Args:
        rank: our own.
        own: where we listen.
        contacts: everybody else.
        reconnect_s: how long a lost connection may stay lost.
        now_s: the monotonic clock.
    """

    def __init__(
        self, rank: int, own: Sequence[Location], contacts: Iterable[Contact], *, reconnect_s: float, now_s: float
    ) -> None:
        self._rank = rank
        self._own = tuple(own)
        self._interfaces = len({one.interface for one in own})
        self._reconnect_s = reconnect_s
        self._by_connection: dict[int, tuple[int, bool]] = {}
        self.peers: dict[int, Peer] = {}
        for contact in contacts:
            compute, bulk = _Channel(True, []), _Channel(False, [])
            peer = self.peers[contact.rank] = Peer(contact.rank, contact.name, contact.locations, compute, bulk)
            self._find_ways(peer, now_s)
            if rank > contact.rank:
                compute.race(now_s + DIAL_OTHER_S)

    @property
    def own(self) -> tuple[Location, ...]:
        """Where we listen."""
        return self._own

    def told(self) -> list[Location]:
        """The same for the others: each address once, although we may have moved to one that we had."""
        return list({one.address: one for one in reversed(self._own)}.values())[::-1]

    def due(self, now_s: float) -> list[Action]:
        """What has to be done by now."""
        actions: list[Action] = []
        for peer in self.peers.values():
            if peer.phase in _ENDED:
                continue
            if peer.phase is Phase.LOST and now_s >= peer.dead_s:
                actions.append(self._declare_dead(peer, peer.reason))
                continue
            if peer.bulk.wanted and not peer.bulk_asked and peer.phase is Phase.UP:
                peer.bulk_asked = True
                actions.append(AskForBulk(peer.rank))
            for bulk in (False, True):
                for way in self._wanted(peer, bulk=bulk):
                    if now_s >= way.next_dial_s:
                        way.dialling = way.tried = True
                        if peer.phase is Phase.LOST and not bulk:
                            way.dialling, way.next_dial_s = False, now_s + REDIAL_S
                        actions.append(Dial(peer.rank, bulk, way.path))
        return actions

    def _wanted(self, peer: Peer, *, bulk: bool) -> list[_Way]:
        """The ways that are to be dialled, each at its time."""
        channel = peer.channel(bulk=bulk)
        if not channel.wanted:
            return []
        if not channel.connections:
            idle = [way for way in channel.ways if not way.dialling]
            links = peer.compute.by_link if bulk else {}
            return [way for way in idle if self._link(peer, way.path) in links] or idle
        own, theirs = self._interfaces, peer.interfaces
        if bulk or self._rank > peer.rank or len(channel.by_link) >= max(own, theirs) or self._on_this_host(peer):
            return []
        idle = [way for way in channel.ways if not way.dialling and not way.is_seen]
        in_use = set(channel.by_link) | {self._link(peer, way.path) for way in channel.ways if way.dialling}
        spare = [way for way in idle if is_spare(self._link(peer, way.path), in_use=in_use, own=own, theirs=theirs)]
        return sorted(spare, key=lambda way: way.next_dial_s)[:1]

    def _link(self, peer: Peer, path: Path) -> Link:
        return self._own[path.local].interface, peer.interface_of(path.remote.address)

    def _on_this_host(self, peer: Peer) -> bool:
        ours = {one.address for one in self._own}
        return any(one.address in ours for one in peer.compute.connections.values())

    def up(self, rank: int, connection: int, *, bulk: bool, dialled: Dial | None, local: int, address: str) -> bool:
        """A connection to `rank` came up; whether it is wanted: not of a rank that is gone, nor our second to a link.

        Args:
            dialled: what `due` asked for; None where the peer dialled.
            local: which of our locations it is of.
            address: the peer's.
        """
        peer = self.peers[rank]
        channel = peer.channel(bulk=bulk)
        if dialled is not None and (way := self._way(dialled)) is not None:
            way.dialling = False
        if peer.phase in _ENDED:
            return False
        link = self._own[local].interface, peer.interface_of(address)
        made = _Connection((self._rank < rank) == (dialled is not None), link, address)
        there = channel.connections.values()
        if dialled is not None and any((one.by_smaller, one.link) == (made.by_smaller, link) for one in there):
            return False  # another attempt came through while this one was under way
        channel.connections[connection] = made
        channel.choose_by_link()
        channel.wanted = True
        peer.bulk_asked = peer.bulk_asked or bulk
        self._by_connection[connection] = (rank, bulk)
        if not bulk:
            peer.phase = Phase.UP
        return True

    def delivered(self, rank: int, *, bulk: bool) -> None:
        """A message went through: a loss of this connection is dialled again at once."""
        channel = self.peers[rank].channel(bulk=bulk)
        for way in channel.ways:
            way.back_off_s = BACK_OFF_S_FIRST
        channel.fresh = True

    def dial_failed(self, dial: Dial, *, now_s: float) -> None:
        """An attempt that `due` asked for came to nothing."""
        way = self._way(dial)
        if way is None:
            return
        way.dialling = False
        channel = self.peers[dial.rank].channel(bulk=dial.bulk)
        if channel.connections:
            if now_s >= way.next_dial_s:  # once, of several attempts at a time
                way.rest(now_s)
        else:
            channel.failed(way, now_s)

    def is_first(self, dial: Dial) -> bool:
        """Whether a dial went where the peer is if it is anywhere. At its other addresses may be somebody else."""
        return dial.path.remote == self.peers[dial.rank].locations[0]

    def _way(self, dial: Dial) -> _Way | None:
        """The way that was dialled; None where the peer or we have moved since."""
        ways = self.peers[dial.rank].channel(bulk=dial.bulk).ways
        return next((way for way in ways if way.path == dial.path), None)

    def down(self, connection: int, *, reason: str, gone: bool = False, now_s: float) -> int | None:
        """A connection ended. Returns its rank when that has no other of the kind left.

        Args:
            gone: its process has ended, or is to count as ended.
        """
        if connection not in self._by_connection:
            return None
        rank, bulk = self._by_connection.pop(connection)
        peer = self.peers[rank]
        channel = peer.channel(bulk=bulk)
        ended = channel.connections.pop(connection)
        channel.choose_by_link()
        if channel.connections:
            if ended.link not in channel.by_link:
                channel.rest(ended.link, lambda way: self._link(peer, way.path), now_s)
            return None
        if channel.fresh:
            channel.fresh = False
            channel.race(now_s)
        else:
            for place, way in enumerate(channel.ways):
                way.wait(now_s + place * STAGGER_S)
        if not bulk and peer.phase is Phase.UP:
            peer.phase = Phase.LOST
            peer.dead_s = now_s if gone else now_s + self._reconnect_s
            peer.reason = reason if gone else f"{reason}; not back after {self._reconnect_s:g} s"
        return rank

    def moved(self, rank: int, *, number: int, locations: tuple[Location, ...], now_s: float) -> list[int]:
        """A rank says where it is reached from now on, and that it has said so `number` times.

        Returns:
            The connections that we dialled to where it was: nobody is there any more.
        """
        peer = self.peers[rank]
        if self.is_late(rank, number):
            return []
        peer.moves = number
        peer.locations = locations
        self._find_ways(peer, now_s)
        there = {one.address for one in locations}
        ours = self._rank < rank
        return [
            connection
            for channel in (peer.compute, peer.bulk)
            for connection, one in channel.connections.items()
            if one.by_smaller == ours and one.address not in there
        ]

    def _find_ways(self, peer: Peer, now_s: float) -> None:
        """After one side has moved. Attempts under way are left to themselves."""
        paths = paths_between(self._own, peer.locations)
        for channel in (peer.compute, peer.bulk):
            seen = [way for way in channel.ways if way.is_seen]
            channel.ways = [*seen, *(_Way(path, now_s) for path in paths)]
            begin_s = max(now_s, channel.look_s) if channel.connections else now_s
            channel.race(begin_s)
            channel.look_s = begin_s + SPARE_AGAIN_S

    def is_late(self, rank: int, number: int) -> bool:
        """Whether a rank says that of a move which we know of, or of one before: it was sent again."""
        return number <= self.peers[rank].moves

    def moved_here(self, now_s: float, *, new: Location) -> list[int]:
        """The first of our locations is another one: dial those to whom there is no connection at once.

        Ranks of the same host had the old address too, and move with it, each by itself.

        Returns:
            The connections to those: nobody is at their other ends any more.
        """
        # One that comes back from another interface's address, as of a cable put in again, is the first again.
        same = next((one.interface for one in self._own[1:] if one.address == new.address), FIRST)
        old, self._own = self._own[0], (replace(new, interface=same), *self._own[1:])
        self._interfaces = len({one.interface for one in self._own})
        stale: list[int] = []
        for peer in self.peers.values():
            if peer.locations[0].address == old.address != new.address:
                peer.locations = (replace(peer.locations[0], address=new.address), *peer.locations[1:])
                stale += self.connections(peer.rank)
            self._find_ways(peer, now_s)
            for channel in (peer.compute, peer.bulk):
                channel.fresh = True
        return stale

    def lacking(self) -> list[tuple[int, bool]]:
        """Ranks to whom a connection is wanted, of compute or (True) bulk, and there is none."""
        return [
            (peer.rank, bulk)
            for peer in self.peers.values()
            for bulk in ((False, True) if peer.phase is Phase.UP else (False,))
            if peer.phase not in _ENDED and peer.channel(bulk=bulk).wanted and not peer.channel(bulk=bulk).connections
        ]

    def reached(self) -> list[int]:
        """Ranks that are there where they say, and we have dialled them."""
        return [
            peer.rank
            for peer in self.peers.values()
            if any(
                one.by_smaller == (self._rank < peer.rank) and one.link[1] != UNTOLD
                for one in peer.compute.connections.values()
            )
        ]

    def dialled_by(self, rank: int, *, bulk: bool) -> list[int]:
        """The connections that a rank has dialled."""
        theirs = rank < self._rank
        found = self.peers[rank].channel(bulk=bulk).connections
        return [connection for connection, one in found.items() if one.by_smaller == theirs]

    def seen_at(self, rank: int, address: Address, *, bulk: bool, now_s: float) -> None:
        """Another rank is dialled by this one from `address`: dial it there, too."""
        remote = Location(UNTOLD, *address, address[1])
        own = [number for number, one in enumerate(self._own) if (":" in one.address) == (":" in remote.address)]
        channel = self.peers[rank].channel(bulk=bulk)
        told = [way for way in channel.ways if not way.is_seen]
        others = [way for way in channel.ways if way.is_seen and way.path.remote != remote]
        there = [way for way in channel.ways if way.path.remote == remote]
        newest = there or [_Way(Path(number, remote), now_s) for number in own]
        channel.ways = [*(others + newest)[-SEEN_WAYS_MAX:], *told]

    def want_bulk(self, rank: int) -> None:
        """Something is to go over the bulk connection; `due` dials it when there is none."""
        self.peers[rank].bulk.wanted = True

    def asked_for_bulk(self, rank: int, now_s: float) -> None:
        """A rank that dials us for bulk asks us to dial it as well, where it does not come."""
        peer = self.peers[rank]
        peer.bulk_asked = True
        if not peer.bulk.wanted:
            peer.bulk.wanted = True
            peer.bulk.race(now_s + DIAL_OTHER_S)

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

    def routes(self, rank: int, *, bulk: bool) -> tuple[int, ...]:
        """The connections to send over, one a link: the one that the smaller rank dialled, the newest of several."""
        return tuple(self.peers[rank].channel(bulk=bulk).by_link.values())

    def route(self, rank: int, *, bulk: bool) -> int | None:
        """One of the connections to send over."""
        return min(self.routes(rank, bulk=bulk), default=None)

    def rank_of(self, connection: int) -> int | None:
        """The rank at the other end."""
        known = self._by_connection.get(connection)
        return None if known is None else known[0]

    def address(self, rank: int) -> str:
        """Where gradients to a rank go. From any thread: the connection may end meanwhile."""
        peer = self.peers[rank]
        route = self.route(rank, bulk=False)
        connection = None if route is None else peer.compute.connections.get(route)
        return peer.locations[0].address if connection is None else connection.address

    def tried(self, rank: int) -> str:
        """Where a rank is dialled, for an error: its first address, and those that other ranks have seen."""
        peer = self.peers[rank]
        seen = [way.path.remote for way in peer.compute.ways if way.is_seen]
        outer = "".join(f", behind NAT at {one.address} port {one.port}" for one in dict.fromkeys(seen))
        return peer.locations[0].address + outer

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
                times.append(peer.dead_s)
            times.extend(way.next_dial_s for bulk in (False, True) for way in self._wanted(peer, bulk=bulk))
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
