"""What one rank says of itself and of its whole group: to `hive-qos job` at its socket, and to other ranks."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping

from transport.collectives.in_flight import InFlight
from transport.collectives.membership import Membership, Memberships, agreeing_group
from transport.engine.base import ConnectionStatistics
from transport.inspection import jobs, links
from transport.inspection.member_socket import MemberSocket
from transport.inspection.survey import Survey
from transport.mesh.endpoint import Endpoint
from transport.p2p.engine import P2PEngine

SHOWN_MAX, RANKS_SHOWN_MAX = 16, 64
"""Operations and groups, and ranks of one, that a rank tells of itself: what somebody reads, and a message carries."""


class Inspection:
    """See the module.

    Args:
        job: the name of the rank's job.
        statistics: what every living connection measured, by connection.
        call: run something in the transport's thread.

    Attributes:
        more: what else this rank says of itself; called in the transport's thread.
    """

    def __init__(
        self,
        *,
        job: str,
        endpoint: Endpoint,
        groups: Memberships,
        in_flight: InFlight,
        p2p: P2PEngine,
        statistics: Callable[[], Mapping[int, ConnectionStatistics]],
        call: Callable[[Callable[[], None]], None],
    ) -> None:
        self._job = job
        self._id = secrets.token_hex(8)
        self._endpoint = endpoint
        self._groups = groups
        self._in_flight = in_flight
        self._p2p = p2p
        self._statistics = statistics
        self._socket: MemberSocket | None = None
        self._closed = False
        self.survey = Survey(send=endpoint.control, call=call, describe=self._describe)
        self.more: Callable[[], Mapping[str, object]] = dict

    def listen(self) -> None:
        """Answer on a socket of this host, until `close`."""
        self._socket = MemberSocket(job=self._job, name=f"rank-{self._endpoint.rank}", answer=self.answer)

    def close(self) -> None:
        """Take the socket away; from now on the transport's thread is not asked. Idempotent."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def plans(self, group: str) -> dict[str, object]:
        """As `Group.explain`."""
        planner = self._groups.open(group).planner
        return {} if planner is None else planner.explain()

    def answer(self, want: str, limit_s: float) -> dict[str, object]:
        """As `jobs.ask`; each rank has so many seconds. From any thread but the transport's."""
        rank = self._endpoint.rank
        if want == jobs.PLANS:
            plans = [{"group": name, **self.plans(name)} for name, _ in self._shown_groups()[:SHOWN_MAX]]
            return {"job": self._job, "rank": rank, "groups": plans}
        own = None if self._closed else self.survey.own(limit_s=limit_s)
        if want != jobs.GROUP:
            return {"job": self._job, "rank": rank, "id": self._id} if own is None else dict(own)
        if own is None:
            silent = [{"rank": rank, "why": "its transport's thread does not answer"}]
            return {"job": self._job, "asked": rank, "members": [], "silent": silent}
        others = {one: str(peer.error.reason) if peer.error else "" for one, peer in self._endpoint.peers.peers.items()}
        found = self.survey.collect([one for one, lost in others.items() if not lost], limit_s=limit_s)
        silent = [
            {"rank": one, "why": lost or f"it did not answer within {limit_s:g} s"}
            for one, lost in others.items()
            if one not in found
        ]
        members = [own, *({**document, "rank": one} for one, document in found.items())]
        return {"job": self._job, "asked": rank, "members": members, "silent": silent}

    def _describe(self) -> dict[str, object]:
        """What this rank says of itself, as JSON has it. In the transport's thread."""
        peers, now_s = self._endpoint.peers, time.monotonic()
        ranked = [(peers.rank_of(number), one) for number, one in self._statistics().items()]
        connections = [(rank, one) for rank, one in ranked if rank is not None]
        waits = [
            {"what": what, **self._calls_of(*key), "for": ranks[:RANKS_SHOWN_MAX], "since_s": round(s, 3)}
            for key, what, ranks, s in self._in_flight.waits()
        ]
        waits += [{"what": what, "for": [rank], "since_s": round(s, 3)} for what, rank, s in self._p2p.waits(now_s)]
        groups = self._shown_groups()
        idle_s = 0.0 if waits else now_s - self._in_flight.idle_since_s
        return {
            "id": self._id,
            "job": self._job,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "rank": self._endpoint.rank,
            "size": len(peers.peers) + 1,
            "groups": [{"name": name, "called": one.next_number} for name, one in groups[:SHOWN_MAX]],
            "waits": sorted(waits, key=lambda one: -float(str(one["since_s"])))[:SHOWN_MAX],
            "idle_s": round(idle_s, 3),
            "links": links.rows(connections),
            **links.totals(connections),
            "saved_bytes": sum(
                one.planner.saved_bytes(one.ranks.index(self._endpoint.rank))
                for _, one in groups
                if one.planner is not None
            ),
            **self.more(),
        }

    def _shown_groups(self) -> list[tuple[str, Membership]]:
        """Those that users have open; from any thread."""
        return [(name, one) for name, one in list(self._groups.by_name.items()) if one.planner and not one.closed]

    def _calls_of(self, group: str, number: int) -> dict[str, object]:
        """Which call of which group an operation is of: others come to an agreement on links by the same call."""
        user = self._groups.by_name.get(agreeing_group(group))
        if user is None:
            return {"group": group, "number": number}
        return {"group": agreeing_group(group), "number": user.next_number - 1}
