"""Further connections to peers, measured, opened, used and closed as `transport.mesh.lanes` decides.

A lane joins a further compute endpoint of one side with the one of the same number of the other, so that on both sides
a thread of its own drives it; engines whose endpoints share one thread never ask for one and refuse those asked for.
Endpoints are made when they are first needed, serve all peers, and live as long as the group. Bulk has no lanes: it is
there to yield, and that goes for the processors, too.

Opening: who wants lane N says `{"op": "lane", "number": N, "port": P}`, where P is its endpoint's. Of the two, the one
that has dialled the other before dials now, for it is known to get through: at once, or when it has been answered with
the other's port (`"reply": true`; port 0: not to be had). Either side sends over a lane that is up as its own
measurements say; one that it does not send over, and over which nothing comes, it closes after `idle_s`.

When the address of either side changes, both close the lanes between them: nothing is known of the new way yet. An
endpoint of the side that has moved gets a socket at the new address when a lane of its number is needed again, so that
there are never more endpoints, nor threads, than numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hive_qos.errors import HiveError, MisuseError
from transport.engine.base import ConnectionStatistics, Engine, Priority
from transport.mesh.lanes import LaneDecision, LaneLaw, LaneState, Window, could_not_open, decide_lanes, first_alone
from transport.mesh.outbox import Outbox, Sending
from transport.mesh.peers import PeerTable
from transport.wire.error_codes import WireCode

MEASURE_S = 0.1
"""How often it is looked: as often as engines renew what they measured."""
OPEN_S = 5.0
"""Within that a lane is up, or there will be none."""
QUIET_BYTES_PER_S = 10_000
"""Keep-alives are a hundred."""

_log = logging.getLogger("transport.mesh.lanes")


@dataclass(frozen=True)
class LaneEnd:
    """An endpoint of ours for lanes of one number."""

    endpoint: int
    port: int


OpenEnd: TypeAlias = Callable[[LaneEnd | None], LaneEnd]
"""Makes an end at the address of now, or has this one go on from there with another socket."""


@dataclass
class _Measuring:
    """A window that is not over. Counters are what they were at its beginning, by connection or endpoint."""

    began_s: float
    counters: Mapping[int, ConnectionStatistics]
    busy_s: Mapping[int, float]
    looks: int = 0
    work: bool = True
    idle: bool = True
    full: int = 0
    delay_s: float = float("inf")


@dataclass
class _Fan:
    """The lanes to one peer."""

    state: LaneState = field(default_factory=LaneState)
    reason: str = ""
    opening: int | None = None  # number of the lane that we asked for
    give_up_s: float = 0.0
    measuring: _Measuring | None = None
    quiet: dict[int, tuple[int, float]] = field(default_factory=dict)  # bytes, and since when there are no more


class LaneLinks:
    """The lanes to all peers. Runs in the transport's thread.

    Args:
        peers: keeps which connections there are.
        outbox: what goes to a rank over compute connections, None where nothing ever did.
        control: sends a small message to a rank.
    """

    def __init__(
        self,
        law: LaneLaw,
        *,
        peers: PeerTable,
        outbox: Callable[[int], Outbox | None],
        control: Callable[[int, Mapping[str, object]], None],
    ) -> None:
        self._law = law
        self._peers = peers
        self._outbox = outbox
        self._control = control
        self._engine: Engine | None = None
        self._compute = 0
        self._open_end: OpenEnd | None = None
        self._ends: dict[int, LaneEnd] = {}
        self._ends_left_behind: set[int] = set()
        self._fans: dict[int, _Fan] = {}
        self._attempts: dict[int, tuple[int, int]] = {}
        self._next_s = 0.0

    def begin(self, engine: Engine, *, compute: int, open_end: OpenEnd | None) -> None:
        """Use `engine`, whose first endpoint is `compute`; None: there are no further ones."""
        if self._law.lanes_max > 1 and open_end is not None and engine.busy_s():
            self._engine, self._compute, self._open_end = engine, compute, open_end

    def lanes(self, rank: int) -> int:
        """How many connections messages to a rank go over."""
        return 1 + len(self._in_use(rank))

    def reason(self, rank: int) -> str:
        """Why it is as many; "" where that never changed."""
        fan = self._fans.get(rank)
        return "" if fan is None else fan.reason

    # Sending.

    def route(self, sending: Sending, outbox: Outbox, first: int) -> int:
        """The connection for a message: the one with the least under way; small ones stay on the first.

        A message goes where one with its key is under way, for those must not overtake each other.
        """
        if sending.bulk or not self._peers.peers[sending.rank].lanes:
            return first
        same = outbox.connection_of(sending.header.key)
        if same is not None and same in self._peers.connections(sending.rank):
            return same
        if sending.over is not None and sending.over in self._peers.peers[sending.rank].lanes:
            return sending.over
        small = sending.priority is Priority.CONTROL or sending.header.length < self._law.lane_bytes_min
        if sending.again or small:
            return first
        return min((first, *self._in_use(sending.rank)), key=outbox.bytes_over)

    def _in_use(self, rank: int) -> list[int]:
        fan = self._fans.get(rank)
        return [] if fan is None else self._peers.lanes(rank)[: fan.state.lanes - 1]

    # What others say and the network does.

    def number_of(self, endpoint: int) -> int | None:
        """The number of the lanes of an endpoint, None where it has none."""
        return next((number for number, end in self._ends.items() if end.endpoint == endpoint), None)

    def asked(self, now_s: float, rank: int, number: int, port: int, *, reply: bool) -> None:
        """A peer serves lane `number` at a port of its host, or has refused to."""
        if self._engine is None or not 1 <= number < self._law.lanes_max or not 0 < port < 65536:
            if not reply:
                self._control(rank, {"op": "lane", "number": number, "port": 0, "reply": True})
            elif self._engine is not None:
                self._failed(now_s, rank, number, "the peer has none")
            return
        try:
            end = self._end(number)
            if self._peers.dialled(rank):
                peer = self._peers.peers[rank]
                if number in peer.lanes.values() or (rank, number) in self._attempts.values():
                    return  # both have asked for it
                address = (self._peers.address(rank, bulk=False)[0], port)
                attempt = self._engine.connect(end.endpoint, address, expected_peer=peer.name)
                self._attempts[attempt] = rank, number
            elif not reply:
                self._control(rank, {"op": "lane", "number": number, "port": end.port, "reply": True})
        except HiveError as error:
            self._failed(now_s, rank, number, str(error))

    def up(self, rank: int, connection: int, number: int, attempt: int | None) -> bool:
        """A lane came up; whether it is wanted."""
        if attempt is not None:
            self._attempts.pop(attempt, None)
        return self._peers.lane_up(rank, connection, number=number)

    def attempt_failed(self, now_s: float, attempt: int, why: str) -> bool:
        """An attempt to dial came to nothing; whether it was for a lane."""
        wanted = self._attempts.pop(attempt, None)
        if wanted is not None:
            self._failed(now_s, *wanted, why)
        return wanted is not None

    def lost(self, now_s: float, connection: int, why: str) -> None:
        """A connection, which need not be a lane, is not to be used any more. `why` is "" where the peer closed it."""
        rank = self._peers.rank_of(connection)
        if rank is None or connection not in self._peers.peers[rank].lanes:
            return
        used = connection in self._in_use(rank)
        self._peers.lane_down(connection)
        fan = self._fans.get(rank)
        if not used or fan is None or self._peers.error(rank) is not None:
            return
        if why:
            self._decided(rank, fan, could_not_open(now_s, fan.state, f"lost one: {why}", self._law))
        else:
            fewer = replace(fan.state, lanes=fan.state.lanes - 1, rates=(), base=None)
            self._decided(rank, fan, LaneDecision(fewer, "the peer has closed one"))

    def moved_here(self) -> None:
        """The address of this host has changed: nobody reaches the sockets of our lanes any more."""
        self._ends_left_behind.update(self._ends)
        for rank in self._peers.peers:
            self.moved(rank, "this host has moved")

    def moved(self, rank: int, why: str) -> None:
        """Close all lanes to a rank, those that are being dialled too, for it or we are elsewhere now."""
        engine, fan = self._engine, self._fans.get(rank)
        if engine is None:
            return
        self._attempts = {attempt: wanted for attempt, wanted in self._attempts.items() if wanted[0] != rank}
        for lane in self._peers.lanes(rank):
            self._peers.lane_down(lane)
            engine.disconnect(lane, wire_code=WireCode.NO_ERROR, reason=why)
        if fan is not None:
            fan.opening = fan.measuring = None
            self._decided(rank, fan, LaneDecision(first_alone(fan.state), why if fan.state.lanes > 1 else ""))

    def _failed(self, now_s: float, rank: int, number: int, why: str) -> None:
        fan = self._fans.get(rank)
        if fan is not None and fan.opening == number:
            fan.opening = None
            self._decided(rank, fan, could_not_open(now_s, fan.state, f"could not open one: {why}", self._law))

    # Measuring.

    def tick(self, now_s: float) -> float:
        """Measure what is due; returns when to be called next."""
        engine = self._engine
        if engine is None or now_s < self._next_s:
            return float("inf") if engine is None else self._next_s
        ranks = [rank for rank in self._peers.peers if self._is_watched(rank)]
        if not ranks:
            return float("inf")
        self._next_s = now_s + MEASURE_S
        try:
            statistics, busy_s = engine.statistics(), engine.busy_s()
            for rank in ranks:
                self._measure(now_s, rank, statistics, busy_s)
        except MisuseError:
            return float("inf")  # the engine has just ended
        return self._next_s

    def _measure(
        self, now_s: float, rank: int, statistics: Mapping[int, ConnectionStatistics], busy_s: Mapping[int, float]
    ) -> None:
        fan = self._fans.setdefault(rank, _Fan())
        self._close_quiet(now_s, rank, fan, statistics)
        if fan.opening is None:
            self._look(now_s, rank, fan, statistics, busy_s)
        elif len(self._peers.lanes(rank)) >= fan.state.lanes - 1:
            fan.opening = None
        elif now_s >= fan.give_up_s:
            self._failed(now_s, rank, fan.opening, f"not up within {OPEN_S:g} s")

    def _is_watched(self, rank: int) -> bool:
        """Whether there is anything to measure: a peer without work and further lanes costs nothing."""
        outbox, fan = self._outbox(rank), self._fans.get(rank)
        if self._peers.error(rank) is not None:
            return False
        if (outbox is not None and outbox.messages) or self._peers.peers[rank].lanes:
            return True
        if fan is not None:
            fan.measuring = None
        return fan is not None and fan.state.lanes > 1

    def _look(
        self,
        now_s: float,
        rank: int,
        fan: _Fan,
        statistics: Mapping[int, ConnectionStatistics],
        busy_s: Mapping[int, float],
    ) -> None:
        first, outbox = self._peers.route(rank, bulk=False), self._outbox(rank)
        connections = () if first is None else (first, *self._in_use(rank))
        if outbox is None or not connections or any(one not in statistics for one in connections):
            fan.measuring = None
            return
        counters = {one: statistics[one] for one in connections}
        window = fan.measuring
        if window is None or set(window.counters) != set(counters):
            fan.measuring = _Measuring(now_s, counters, busy_s)
            return
        window.looks += 1
        window.work &= outbox.messages > len(connections)
        window.idle &= not outbox.messages
        window.delay_s = min(window.delay_s, *(one.rtt_latest_s - one.rtt_s_min for one in counters.values()))
        window.full += any(self._is_full(one) for one in counters.values())
        if now_s - window.began_s < self._law.window_s:
            return
        fan.measuring = _Measuring(now_s, counters, busy_s)
        self._decided(rank, fan, decide_lanes(now_s, fan.state, self._window(window, fan.measuring, rank), self._law))
        if len(self._peers.lanes(rank)) < fan.state.lanes - 1:
            self._open(now_s, rank, fan)

    def _is_full(self, one: ConnectionStatistics) -> bool:
        return one.in_flight_bytes > self._law.window_full_share * one.congestion_window_bytes

    def _window(self, window: _Measuring, end: _Measuring, rank: int) -> Window:
        law, span_s = self._law, end.began_s - window.began_s
        pairs = [(window.counters[one], end.counters[one]) for one in window.counters]
        lost = sum(after.lost_packets - before.lost_packets for before, after in pairs)
        sent = sum(after.sent_packets - before.sent_packets for before, after in pairs)
        delivered = sum(after.delivered_bytes - before.delivered_bytes for before, after in pairs)
        limited = ""
        if lost > law.loss_share_max * sent:
            limited = f"{lost} of {sent} packets were lost"
        elif window.delay_s > law.delay_s_max:
            limited = f"a queue of {window.delay_s * 1e3:.1f} ms stands"
        elif 2 * window.full > window.looks:
            limited = "the congestion window is full"
        endpoints = [self._endpoint_of(rank, one) for one in window.counters]
        busy = [end.busy_s.get(one, 0.0) - window.busy_s.get(one, 0.0) for one in endpoints]
        return Window(delivered / span_s, window.work, window.idle, min(busy) / span_s, limited)

    def _endpoint_of(self, rank: int, connection: int) -> int:
        number = self._peers.peers[rank].lanes.get(connection)
        return self._compute if number is None else self._ends[number].endpoint

    def _close_quiet(self, now_s: float, rank: int, fan: _Fan, statistics: Mapping[int, ConnectionStatistics]) -> None:
        """Close lanes that neither side has sent over for a while."""
        unused = [one for one in self._peers.lanes(rank)[fan.state.lanes - 1 :] if one in statistics]
        fan.quiet = {one: fan.quiet.get(one, (0, now_s)) for one in unused}
        for one in unused:
            total = statistics[one].sent_bytes + statistics[one].received_bytes
            before, since_s = fan.quiet[one]
            if total - before > QUIET_BYTES_PER_S * self._law.idle_s:
                fan.quiet[one] = total, now_s
            elif now_s - since_s >= self._law.idle_s and self._engine is not None:
                self._peers.lane_down(one)
                self._engine.disconnect(one, wire_code=WireCode.NO_ERROR, reason="nothing goes over this lane")

    # Opening.

    def _open(self, now_s: float, rank: int, fan: _Fan) -> None:
        taken = self._peers.peers[rank].lanes.values()
        number = next(number for number in range(1, self._law.lanes_max) if number not in taken)
        fan.opening, fan.give_up_s = number, now_s + OPEN_S
        try:
            port = self._end(number).port
        except HiveError as error:
            self._failed(now_s, rank, number, str(error))
        else:
            self._control(rank, {"op": "lane", "number": number, "port": port})

    def _end(self, number: int) -> LaneEnd:
        assert self._open_end is not None, "begin() comes first"
        if number not in self._ends or number in self._ends_left_behind:
            self._ends[number] = self._open_end(self._ends.get(number))
            self._ends_left_behind.discard(number)
        return self._ends[number]

    def _decided(self, rank: int, fan: _Fan, decision: LaneDecision) -> None:
        changed = decision.state.lanes != fan.state.lanes
        fan.state = decision.state
        if decision.reason:
            fan.reason = decision.reason
            _log.info("rank %d: %d lanes: %s", rank, fan.state.lanes, decision.reason)
        if changed:
            fan.measuring = None
