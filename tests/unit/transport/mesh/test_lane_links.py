"""How further lanes are measured, asked for, used and lost, with a clock and figures that the test gives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from hive_qos.errors import ConfigurationError, MisuseError
from transport.engine.base import ConnectionStatistics, Priority
from transport.mesh.lane_links import MEASURE_S, OPEN_S, LaneEnd, LaneLinks
from transport.mesh.lanes import LaneLaw
from transport.mesh.outbox import Outbox, Sending
from transport.mesh.peers import Contact, PeerTable
from transport.wire.header import Header, Kind

LAW = LaneLaw()
FIRST, COMPUTE = 1, 100
BIG = 512 * 1024


class ScriptedEngine:
    """Figures as the test sets them; remembers who was dialled and closed."""

    def __init__(self, *, threads: bool = True) -> None:
        self.threads = threads
        self.busy: dict[int, float] = {COMPUTE: 0.0}
        self.connections: dict[int, dict[str, Any]] = {}
        self.dialled: list[tuple[int, tuple[str, int], str | None]] = []
        self.closed: list[int] = []
        self.over = False

    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        if self.over:
            raise MisuseError("the engine is closed")
        plain: dict[str, Any] = dict.fromkeys(ConnectionStatistics.__dataclass_fields__, 0)
        plain |= {"peer": "node-1", "remote": ("10.0.0.2", 5001), "bulk": False, "congestion_window_bytes": 10**9}
        return {one: ConnectionStatistics(**(plain | fields)) for one, fields in self.connections.items()}

    def busy_s(self) -> Mapping[int, float]:
        return dict(self.busy) if self.threads else {}

    def connect(self, endpoint: int, remote: tuple[str, int], *, expected_peer: str | None) -> int:
        self.dialled.append((endpoint, remote, expected_peer))
        return 1000 + len(self.dialled)

    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        self.closed.append(connection)


class Side:
    """One rank of two, with a connection to the other that rank 0 has dialled."""

    def __init__(self, rank: int = 0, *, law: LaneLaw = LAW, threads: bool = True) -> None:
        self.now_s = 100.0
        self.other = 1 - rank
        contact = Contact(self.other, f"node-{self.other}", ("10.0.0.2", 5001), ("10.0.0.2", 6001))
        self.peers = PeerTable(rank, [contact], reconnect_s=2.0, now_s=self.now_s)
        self.peers.up(self.other, FIRST, bulk=False, dialled=rank == 0)
        self.engine = ScriptedEngine(threads=threads)
        self.engine.connections[FIRST] = {}
        self.outbox = Outbox()
        self.said: list[Mapping[str, object]] = []
        self.ends = 0
        self.no_socket = False
        self.links = LaneLinks(
            law, peers=self.peers, outbox=lambda _rank: self.outbox, control=lambda _rank, said: self.said.append(said)
        )
        self.links.begin(self.engine, compute=COMPUTE, open_end=self._open_end)  # type: ignore[arg-type]

    def _open_end(self, before: LaneEnd | None) -> LaneEnd:
        if self.no_socket:
            raise ConfigurationError("HIVE_LISTEN", "10.0.0.1:0", "cannot bind: no more sockets")
        if before is not None:
            return LaneEnd(before.endpoint, before.port + 100)
        self.ends += 1
        self.engine.busy[COMPUTE + self.ends] = 0.0
        return LaneEnd(COMPUTE + self.ends, 7000 + self.ends)

    def up(self, connection: int, number: int = 1, attempt: int | None = None) -> None:
        self.engine.connections[connection] = {}
        assert self.links.up(self.other, connection, number, attempt)

    def work(self, count: int = 20) -> None:
        for number in range(count):
            self.outbox.push(self.sending(number), (0, number))

    def sending(self, number: int, *, size: int = BIG, priority: Priority = Priority.GRADIENT) -> Sending:
        header = Header(kind=Kind.COLLECTIVE, bucket=number, length=size)
        return Sending(self.other, header, None, priority, lambda _error: None, priority is Priority.BULK)

    def pass_time(self, seconds: float, *, bytes_per_s: float = 1e8, share: float = 1.0, **grows: float) -> None:
        """Let time pass in which every connection delivers and every thread is busy; `grows` by second."""
        for _ in range(round(seconds / MEASURE_S)):
            self.now_s += MEASURE_S
            for endpoint in self.engine.busy:
                self.engine.busy[endpoint] += share * MEASURE_S
            for fields in self.engine.connections.values():
                steps = {"delivered_bytes": bytes_per_s, "sent_bytes": bytes_per_s, "sent_packets": 1e5} | grows
                for name, rate in steps.items():
                    fields[name] = fields.get(name, 0) + int(rate * MEASURE_S)
            self.links.tick(self.now_s)

    @property
    def lanes(self) -> int:
        return self.links.lanes(self.other)


ASK = {"op": "lane", "number": 1, "port": 7001}
REFUSAL = {"op": "lane", "number": 1, "port": 0, "reply": True}


def test_a_busy_thread_asks_for_a_lane_uses_it_when_it_is_up_and_keeps_it_for_its_gain(caplog):
    caplog.set_level(logging.INFO, "transport.mesh.lanes")
    side = Side()
    side.work()
    side.pass_time(3.5)
    assert side.said == [ASK]
    assert side.lanes == 1  # not yet up
    side.links.asked(side.now_s, 1, 1, 8001, reply=True)
    assert side.engine.dialled == [(COMPUTE + 1, ("10.0.0.2", 8001), "node-1")]
    side.up(50, attempt=1001)
    assert side.lanes == 2
    side.pass_time(5.0)
    assert side.lanes == 2
    assert side.links.reason(1) == "worth it: 1600 Mbit/s instead of 800 Mbit/s"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["rank 1"] * 2


def test_a_lane_that_carries_no_more_is_used_no_more_and_closed_when_it_is_quiet():
    side = Side()
    side.work()
    side.pass_time(3.5)
    side.up(50)
    side.pass_time(5.0, bytes_per_s=5e7)
    assert side.lanes == 1
    assert side.links.reason(1).startswith("not worth it: 800 Mbit/s instead of 800 Mbit/s")
    assert side.engine.closed == []  # the peer may send over it
    side.pass_time(LAW.idle_s + 1.0, bytes_per_s=0)
    assert side.engine.closed == [50]
    assert side.peers.lanes(1) == []


@pytest.mark.parametrize(
    ("what", "grows"),
    [
        ({}, {"share": 0.8}),
        ({}, {"lost_packets": 100.0}),
        ({"rtt_latest_s": 0.02, "rtt_s_min": 0.001}, {}),
        ({"in_flight_bytes": 800_000_000}, {}),
    ],
)
def test_what_the_network_limits_or_a_thread_that_waits_gets_none(what, grows):
    side = Side()
    side.engine.connections[FIRST] |= what
    side.work()
    side.pass_time(30.0, **grows)
    assert (side.said, side.lanes) == ([], 1)


def test_one_message_at_a_time_gets_none_for_it_goes_over_one_lane():
    side = Side()
    side.work(1)
    side.pass_time(30.0)
    assert side.said == []


@pytest.mark.parametrize("options", [{"threads": False}, {"law": LaneLaw(lanes_max=1)}])
def test_who_has_no_lanes_measures_nothing_and_refuses(options):
    side = Side(**options)
    side.work()
    side.pass_time(30.0)
    assert side.links.tick(side.now_s) == float("inf")
    side.links.asked(side.now_s, 1, 1, 8001, reply=False)
    assert side.said == [REFUSAL]
    side.links.asked(side.now_s, 1, 1, 0, reply=True)
    assert side.said == [REFUSAL]


def test_of_the_two_the_one_that_has_dialled_before_dials_the_lane_and_nobody_answers_an_answer():
    asked, dialler = Side(1), Side(0)
    asked.links.asked(100.0, 0, 1, 8001, reply=False)
    assert asked.said == [{"op": "lane", "number": 1, "port": 7001, "reply": True}]
    asked.links.asked(100.0, 0, 1, 8001, reply=True)
    assert len(asked.said) == 1
    assert asked.engine.dialled == []
    dialler.links.asked(100.0, 1, 1, 8001, reply=False)
    assert dialler.said == []
    assert len(dialler.engine.dialled) == 1


def test_a_lane_that_both_ask_for_is_dialled_once():
    side = Side()
    side.work()
    side.pass_time(3.5)
    side.links.asked(side.now_s, 1, 1, 8001, reply=False)
    side.links.asked(side.now_s, 1, 1, 8001, reply=True)
    assert len(side.engine.dialled) == 1
    side.up(50, attempt=1001)
    side.links.asked(side.now_s, 1, 1, 8001, reply=False)
    assert len(side.engine.dialled) == 1
    assert side.lanes == 2


@pytest.mark.parametrize(("number", "port"), [(0, 8001), (4, 8001), (-1, 8001), (1, 65536), (1, -5), (2**70, 1)])
def test_nonsense_is_refused(number, port):
    side = Side()
    side.links.asked(100.0, 1, number, port, reply=False)
    assert side.said == [{"op": "lane", "number": number, "port": 0, "reply": True}]
    assert (side.engine.dialled, side.ends) == ([], 0)


def test_a_refusal_silence_and_a_failed_attempt_are_reasons_to_wait():
    for what, why in (
        (lambda side: side.links.asked(side.now_s, 1, 1, 0, reply=True), "the peer has none"),
        (lambda side: side.pass_time(OPEN_S + 0.5), "not up within 5 s"),
        (dial_in_vain, "nobody answers"),
    ):
        side = Side()
        side.work()
        side.pass_time(3.5)
        what(side)
        assert side.links.reason(1) == f"could not open one: {why}"
        side.pass_time(LAW.retry_s_first - 8.0)
        assert len(side.said) == 1
        side.pass_time(10.0)
        assert side.said == [ASK, ASK]


def dial_in_vain(side: Side) -> None:
    side.links.asked(side.now_s, 1, 1, 8001, reply=True)
    assert side.links.attempt_failed(side.now_s, 1001, "nobody answers")
    assert not side.links.attempt_failed(side.now_s, 1001, "nobody answers")


def test_without_a_socket_there_is_no_lane():
    side = Side()
    side.no_socket = True
    side.work()
    side.pass_time(3.5)
    assert "no more sockets" in side.links.reason(1)
    assert side.said == []


def with_two_lanes() -> Side:
    side = Side()
    side.work()
    side.pass_time(3.5)
    side.up(50)
    side.pass_time(9.0)
    side.up(60, number=2)
    assert side.lanes == 3
    return side


def test_messages_go_where_the_least_is_under_way_and_small_and_urgent_ones_over_the_first():
    side, outbox = with_two_lanes(), Outbox()
    went = []
    for number in range(6):
        one = side.sending(number)
        went.append(side.links.route(one, outbox, FIRST))
        outbox.flies(one, number, went[-1])
    assert sorted(went) == [FIRST, FIRST, 50, 50, 60, 60]
    assert side.links.route(side.sending(7, size=1000), outbox, FIRST) == FIRST
    assert side.links.route(side.sending(8, priority=Priority.CONTROL), outbox, FIRST) == FIRST
    assert side.links.route(side.sending(9, priority=Priority.BULK), outbox, 2) == 2
    outbox.landed(went.index(60))
    assert side.links.route(side.sending(10), outbox, FIRST) == 60


def test_a_message_follows_the_one_with_its_key_whatever_it_is():
    side, outbox = with_two_lanes(), Outbox()
    outbox.flies(side.sending(1), 1, 60)
    for size, priority in ((1, Priority.GRADIENT), (BIG, Priority.GRADIENT), (20, Priority.CONTROL)):
        assert side.links.route(side.sending(1, size=size, priority=priority), outbox, FIRST) == 60
    outbox.flies(side.sending(1), 2, 60)
    outbox.landed(1)
    assert side.links.route(side.sending(1, size=1), outbox, FIRST) == 60
    outbox.landed(2)
    assert side.links.route(side.sending(1, size=1), outbox, FIRST) == FIRST


def test_what_a_lane_lost_goes_over_the_first_and_the_lane_is_used_no_more():
    side, outbox = with_two_lanes(), Outbox()
    one = side.sending(1)
    outbox.flies(one, 1, 60)
    side.links.lost(side.now_s, 60, "nothing heard for 2 s")
    assert (side.lanes, side.links.reason(1)) == (2, "lost one: nothing heard for 2 s")
    outbox.landed(1)
    one.again = True
    assert side.links.route(one, outbox, FIRST) == FIRST
    side.links.lost(side.now_s, 60, "told once more")
    side.links.lost(side.now_s, FIRST, "no lane")
    assert side.lanes == 2


def test_a_lane_that_the_peer_has_closed_is_no_failure():
    side = with_two_lanes()
    side.links.lost(side.now_s, 50, "")
    assert (side.lanes, side.links.reason(1)) == (2, "the peer has closed one")
    assert side.peers.lanes(1) == [60]


def test_where_this_host_has_moved_its_lanes_are_closed_and_opened_anew_over_the_same_endpoints():
    side = with_two_lanes()
    side.links.moved_here()
    assert (side.lanes, side.links.reason(1)) == (1, "this host has moved")
    assert (side.engine.closed, side.peers.lanes(1)) == ([50, 60], [])
    side.said.clear()
    side.pass_time(4.0)
    assert side.said == [ASK | {"port": 7101}]
    side.up(70)
    assert side.lanes == 2
    side.pass_time(9.0)
    assert side.said[1] == ASK | {"number": 2, "port": 7102}
    assert side.ends == 2
    assert side.links.number_of(COMPUTE + 1) == 1


def test_where_the_peer_has_moved_its_lanes_are_closed_and_opened_anew_over_the_same_sockets():
    side = with_two_lanes()
    side.links.moved(1, "the peer has moved")
    assert (side.lanes, side.links.reason(1)) == (1, "the peer has moved")
    assert (side.engine.closed, side.peers.lanes(1)) == ([50, 60], [])
    side.said.clear()
    side.pass_time(4.0)
    assert side.said == [ASK]


def test_a_lane_that_was_being_dialled_when_a_side_moved_is_asked_for_again_without_a_wait():
    side = Side()
    side.work()
    side.pass_time(3.5)
    side.links.asked(side.now_s, 1, 1, 8001, reply=True)
    side.links.moved(1, "the peer has moved")
    assert not side.links.attempt_failed(side.now_s, 1001, "nobody answers")
    side.pass_time(4.0)
    assert side.said == [ASK, ASK]


def test_what_a_lane_was_not_worth_before_a_move_still_counts_after_it():
    side = Side()
    side.work()
    side.pass_time(3.5)
    side.up(50)
    side.pass_time(5.0, bytes_per_s=5e7)
    side.links.moved_here()
    side.said.clear()
    side.pass_time(LAW.retry_s_first - 8.0)
    assert side.said == []
    side.pass_time(10.0)
    assert side.said == [ASK | {"port": 7101}]


def test_who_has_no_lanes_moves_without_a_word():
    side = Side(threads=False)
    side.links.moved_here()
    assert (side.lanes, side.links.reason(1), side.engine.closed) == (1, "", [])


def test_no_lane_comes_up_to_a_rank_that_is_gone():
    side = with_two_lanes()
    assert side.peers.connections(1) == [FIRST, 50, 60]
    assert side.peers.rank_of(60) == 1
    side.peers.dead(1, "killed")
    assert not side.links.up(1, 70, 3, None)
    assert side.links.tick(side.now_s + 1) == float("inf")


def test_an_engine_that_has_ended_is_measured_no_more():
    side = with_two_lanes()
    side.engine.over = True
    assert side.links.tick(side.now_s + 1) == float("inf")
