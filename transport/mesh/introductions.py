"""How two ranks meet that nobody can dial: each behind a router that translates addresses and lets only answers in.

A rank that both have dialled sees from which address and port each of them comes, outside its router. Whoever lacks a
connection asks such ranks, and dials what they have seen. The other one does the same, so that each router has seen
packets go out when those of the other arrive (UDP hole punching, RFC 5128, section 3.3). It needs routers that keep a
socket's outer address whomever it sends to (endpoint-independent mapping, RFC 4787, section 4.1).

Where that does not help (a router takes another port for each peer), who is asked again and again relays between them.

Runs in the transport's thread. What others say is only where to dial: who answers has to prove who it is.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping

from transport.engine.base import Address, ConnectionStatistics
from transport.mesh.paths import checked_integer, checked_text, is_group_or_none
from transport.mesh.peers import PeerTable, Phase
from transport.mesh.relays import Relays

ASK_S = 0.5
"""Between looks. A new rank is asked for at the second: most are there by then. A lost one has two seconds to live."""
RELAY_ASKED = 6
"""So many questions for a pair, which come from both: a second and a half after the first ones they did not meet."""
ASKED_MAX = 4
"""So many ranks are asked at a time; the next time the next ones."""

_log = logging.getLogger("transport.mesh.introductions")


class Introductions:
    """See the module.

    Args:
        control: sends a small message to a rank.
        statistics: of each connection, with where its packets come from by now: a router may change that.
        relays: this rank's.
    """

    def __init__(
        self,
        peers: PeerTable,
        control: Callable[[int, Mapping[str, object]], None],
        statistics: Callable[[], Mapping[int, ConnectionStatistics]],
        relays: Relays,
    ) -> None:
        self._peers = peers
        self._control = control
        self._statistics = statistics
        self._relays = relays
        self._asked: dict[tuple[tuple[int, int], bool], tuple[int, float]] = {}
        self._lacking: set[tuple[int, bool]] = set()
        self._look_s = 0.0
        self._turn = 0

    def tick(self, now_s: float) -> float:
        """Ask for ranks that lack a connection; returns when to be called next."""
        if now_s >= self._look_s:
            self._look_s = now_s + ASK_S
            before, self._lacking = self._lacking, set(self._peers.lacking())
            for rank, bulk in self._lacking:
                if (rank, bulk) in before or self._peers.peers[rank].phase is Phase.LOST:
                    self._ask(rank, bulk=bulk)
        return self._look_s if self._lacking else float("inf")

    def _ask(self, rank: int, *, bulk: bool) -> None:
        known = [other for other in self._peers.reached() if other != rank]
        self._turn += 1
        first = self._turn * ASKED_MAX % len(known) if len(known) > ASKED_MAX else 0
        for other in (known[first:] + known[:first])[:ASKED_MAX]:
            self._control(other, {"op": "where", "rank": rank, "bulk": bulk})

    def asked(self, by: int, rank: int, *, bulk: bool, now_s: float) -> None:
        """A rank asks from where we are dialled by another one, which is told of it at the same time.

        So the first packet of each has left when the other's comes: a router that has seen the other's before, and does
        not drop it in silence, takes another port.
        """
        if by == rank or self._peers.peers[rank].phase is not Phase.UP:
            return  # it may be here by the next time
        unknown = [
            one for one in (by, rank) if bulk and self._outer(one, bulk=False) and not self._outer(one, bulk=True)
        ]
        for one in unknown:
            self._peers.want_bulk(one)  # it dials us for bulk as well, and is asked for again
        if unknown:
            return
        self._relay((min(by, rank), max(by, rank)), bulk=bulk, now_s=now_s)
        for to, one in ((by, rank), (rank, by)):
            if (source := self._outer(one, bulk=bulk)) is not None:
                self._control(to, {"op": "seen", "rank": one, "bulk": bulk, "address": source[0], "port": source[1]})

    def _relay(self, ranks: tuple[int, int], *, bulk: bool, now_s: float) -> None:
        """Open a way through this rank where two ask for each other again and again, one at least behind NAT."""
        count, last_s = self._asked.get((ranks, bulk), (0, now_s))
        count = count + 1 if now_s - last_s < 2 * ASK_S else 1
        self._asked[ranks, bulk] = count, now_s
        outer = [self._outer(rank, bulk=False) for rank in ranks]
        if count < RELAY_ASKED or not any(outer):
            return
        first, second = [
            self._peers.address(rank) if source is None else source[0]
            for rank, source in zip(ranks, outer, strict=True)
        ]
        if (sockets := self._relays.between(ranks, (first, second))) is not None:
            ports = {"port": sockets.compute_port, "bulk_port": sockets.bulk_port}
            for to, one in (ranks, ranks[::-1]):
                self._control(to, {"op": "relay", "rank": one, **ports})

    def _outer(self, rank: int, *, bulk: bool) -> Address | None:
        """From where a rank dials us, if it is not what it told."""
        statistics = self._statistics()
        sources = [
            statistics[connection].remote
            for connection in self._peers.dialled_by(rank, bulk=bulk)
            if connection in statistics
        ]
        told = [one.of(bulk=bulk) for one in self._peers.peers[rank].locations]
        return next((one for one in sources if one not in told), None)

    def told(self, by: int, rank: int, message: Mapping[str, object], *, bulk: bool, now_s: float) -> None:
        """A rank says from where it is dialled by another one."""
        if (rank, bulk) not in self._peers.lacking():
            return  # it is connected by now
        try:
            address = str(ipaddress.ip_address(checked_text(message, "address")))
            port = checked_integer(message, "port", 65535, 1)
            if is_group_or_none(address):
                raise ValueError(f"{address} is not the address of a host")
        except (ValueError, KeyError) as error:
            _log.warning("rank %d says where rank %d is, which is nowhere: %s", by, rank, error)
        else:
            self._peers.seen_at(rank, (address, port), bulk=bulk, now_s=now_s)

    def relayed(self, by: int, rank: int, message: Mapping[str, object], *, now_s: float) -> None:
        """A rank passes on what we and another one exchange, at its own address."""
        lacking = [bulk for other, bulk in self._peers.lacking() if other == rank]
        if not lacking:
            return  # it is connected by now
        try:
            ports = checked_integer(message, "port", 65535, 1), checked_integer(message, "bulk_port", 65535, 1)
        except (ValueError, KeyError) as error:
            _log.warning("rank %d says that it relays to rank %d, but not where: %s", by, rank, error)
            return
        for bulk in {*lacking, True}:
            self._peers.seen_at(rank, (self._peers.address(by), ports[bulk]), bulk=bulk, now_s=now_s)
