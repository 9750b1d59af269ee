"""How two ranks meet that nobody can dial: each behind a router that translates addresses and lets only answers in.

A rank that both have dialled sees from which address and port each of them comes, outside its router. Whoever lacks a
connection asks such ranks, and dials what they have seen. The other one does the same, so that each router has seen
packets go out when those of the other arrive (UDP hole punching, RFC 5128, section 3.3). It needs routers that keep a
socket's outer address whomever it sends to (endpoint-independent mapping, RFC 4787, section 4.1).

Runs in the transport's thread. What others say is only where to dial: who answers has to prove who it is.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping

from transport.engine.base import Address, ConnectionStatistics
from transport.mesh.paths import checked_integer, checked_text, differing_bits, is_group_or_none
from transport.mesh.peers import PeerTable, Phase

ASK_S = 0.5
"""Between looks. A new rank is asked for at the second: most are there by then. A lost one has two seconds to live."""
ASKED_MAX = 4
"""So many ranks are asked for one at a look, those with the least similar addresses first; at the next one others."""
ANSWERED_MAX = 64
"""Questions of one rank between two looks: a member could ask all the time, and an answer takes two messages."""
TOLD_MAX = 2
"""New addresses of one rank between two looks: each is dialled, and may be a stranger's."""

_log = logging.getLogger("transport.mesh.introductions")


class Introductions:
    """See the module.

    Args:
        control: sends a small message to a rank.
        statistics: of each connection, with where its packets come from by now: a router may change that.
    """

    def __init__(
        self,
        peers: PeerTable,
        control: Callable[[int, Mapping[str, object]], None],
        statistics: Callable[[], Mapping[int, ConnectionStatistics]],
    ) -> None:
        self._peers = peers
        self._control = control
        self._statistics = statistics
        self._asked: dict[tuple[int, bool], int] = {}
        self._look_s = 0.0
        self._answered: dict[int, int] = {}
        self._told: dict[tuple[int, bool], set[Address]] = {}

    def tick(self, now_s: float) -> float:
        """Ask for ranks that lack a connection; returns when to be called next."""
        if now_s >= self._look_s:
            self._look_s = now_s + ASK_S
            self._answered, self._told = {}, {}
            before, self._asked = self._asked, {}
            for rank, bulk in self._peers.lacking():
                times = self._asked[rank, bulk] = before.get((rank, bulk), 0)
                if (rank, bulk) in before or self._peers.peers[rank].phase is Phase.LOST:
                    self._ask(rank, bulk=bulk, times=times)
                    self._asked[rank, bulk] += 1
        return self._look_s if self._asked else float("inf")

    def _ask(self, rank: int, *, bulk: bool, times: int) -> None:
        """Ask some of those that we have dialled; who is near by address is behind our own router, and knows less."""
        here = self._peers.own[0].address
        known = [other for other in self._peers.reached() if other != rank]
        known.sort(key=lambda other: -differing_bits(here, self._peers.address(other)))
        first = times * ASKED_MAX % max(len(known), 1)
        for other in (known[first:] + known[:first])[:ASKED_MAX]:
            self._control(other, {"op": "where", "rank": rank, "bulk": bulk})

    def asked(self, by: int, rank: int, *, bulk: bool) -> None:
        """A rank asks from where we are dialled by another one, which is told of it at the same time.

        So the first packet of each has left when the other's comes: a router that has seen the other's before, and does
        not drop it in silence, takes another port.
        """
        self._answered[by] = self._answered.get(by, 0) + 1
        if self._answered[by] > ANSWERED_MAX or self._peers.peers[rank].phase is not Phase.UP:
            return  # it may be here by the next time
        statistics = self._statistics()
        behind = [one for one in (by, rank) if self._outer(one, statistics, bulk=False) is not None]
        missing = [one for one in behind if bulk and not self._peers.dialled_by(one, bulk=True)]
        for one in missing:
            self._peers.want_bulk(one)  # it dials us for bulk as well, and is asked for again
        dialled = [number for one in (by, rank) for number in self._peers.dialled_by(one, bulk=bulk)]
        if missing or not all(number in statistics for number in dialled):
            return  # where one of them comes from is not known yet
        for to, one in ((by, rank), (rank, by)):
            if (source := self._outer(one, statistics, bulk=bulk)) is not None:
                self._control(to, {"op": "seen", "rank": one, "bulk": bulk, "address": source[0], "port": source[1]})

    def _outer(self, rank: int, statistics: Mapping[int, ConnectionStatistics], *, bulk: bool) -> Address | None:
        """From where a rank dials us, if it is not what it told."""
        numbers = self._peers.dialled_by(rank, bulk=bulk)
        sources = [statistics[number].remote for number in numbers if number in statistics]
        told = [one.of(bulk=bulk) for one in self._peers.peers[rank].locations]
        return next((one for one in sources if one not in told), None)

    def told(self, by: int, rank: int, message: Mapping[str, object], *, bulk: bool, now_s: float) -> None:
        """A rank says from where it is dialled by another one."""
        if by not in self._peers.reached() or (rank, bulk) not in self._peers.lacking():
            return  # it is connected by now
        try:
            address = str(ipaddress.ip_address(checked_text(message, "address")))
            port = checked_integer(message, "port", 65535, 1)
            if is_group_or_none(address):
                raise ValueError(f"{address} is not the address of a host")
        except (ValueError, KeyError) as error:
            _log.warning("rank %d says where rank %d is, which is nowhere: %s", by, rank, error)
            return
        told = self._told.setdefault((rank, bulk), set())
        if len(told) < TOLD_MAX:
            told.add((address, port))
            self._peers.seen_at(rank, (address, port), bulk=bulk, now_s=now_s)
