"""Ticks that only read: what is kept of them, and what ends the rest besides the counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.daemon.sample_buffer import KEPT_MAX, Readings
from broker.enforce.egress import EgressTrees
from broker.enforce.interfaces import ShapedInterfaces
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.skip import REST_S
from broker.law.state import State
from broker.measure.flow_table import SAMPLES_MAX, SAMPLES_PER_SESSION_MIN, FlowTable
from broker.measure.interfaces import InterfaceCounters, Links
from broker.model.connection_report import ConnectionReport
from broker.model.values import InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import Policy
from broker.process.log import open_log
from shaping.journal import Journal
from shaping.shaper import Shaper
from shaping.testing import FakeKernel

TEXT = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'
TICK_S = 0.1


def connection(trip_s: float, delivered_bytes: int, *, port: int = 1) -> ConnectionReport:
    return ConnectionReport(
        peer="10.0.0.2", port=port, traffic_class="compute", rtt_s=trip_s, rtt_latest_s=trip_s, rtt_s_min=0.004,
        one_way_s=None, one_way_age_s=None, delivered_bytes=delivered_bytes, sent_packets=delivered_bytes // 1000,
        lost_packets=0, delivery_rate_bits_per_s=None, application_limited=True,
    )  # fmt: skip


@dataclass
class Host:
    """One interface of a kernel in memory, on which nothing is sent, and the readings of it."""

    folder: Path
    traffic: InterfaceCounters
    text: str = TEXT
    now_s: float = 100.0
    wall_s: float = 600.0

    def __post_init__(self) -> None:
        self.policy: Policy = load(self.text)
        kernel, journal, log = FakeKernel(("eth0",)), Journal(self.folder), open_log()
        self.egress_trees = EgressTrees(Shaper(kernel, journal), log=log, clock=self.clock)
        self.flows = FlowTable()
        shaped_interfaces = ShapedInterfaces(
            self.egress_trees, kernel=kernel, journal=journal, links=Links(lambda _: None), log=log, clock=self.clock
        )
        self.readings = Readings(
            egress_trees=self.egress_trees,
            traffic=self.traffic,
            flows=self.flows,
            interface_of=lambda _: "eth0",
            clock=self.clock,
            utc_s=lambda: self.now_s + self.wall_s,
        )
        first = decide(now_s=self.now_s, state=State(), measurements=Measurements(), policy=self.policy)
        shaped_interfaces.attach_all(first.allocation, policy=self.policy, class_cgroups=())
        self.state = first.state
        self.decide()
        self.now_s += TICK_S
        self.decide()

    def clock(self) -> float:
        return self.now_s

    def decide(self) -> Decision:
        classes, age_s = self.egress_trees.read("eth0", fresh_s=0.0)
        earlier = self.readings.earlier("eth0", now_s=self.now_s)
        sample = InterfaceSample("eth0", counters_age_s=age_s, classes=classes, earlier=earlier)
        measurements = Measurements((sample,))
        decision = decide(now_s=self.now_s, state=self.state, measurements=measurements, policy=self.policy)
        self.state = decision.state
        self.readings.decided(decision, measurements, policy=self.policy, now_s=self.now_s)
        return decision

    def tick(self, *, tick_s: float = TICK_S) -> bool:
        self.now_s += tick_s
        return self.readings.suffices(self.policy, tick_s=tick_s)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    traffic = InterfaceCounters()
    yield Host(tmp_path, traffic)
    traffic.close()


def test_three_ticks_read_and_the_fourth_decides_with_what_they_read(host: Host) -> None:
    assert host.readings.rests
    assert [host.tick() for _ in range(4)] == [True, True, True, False]
    kept = host.readings.earlier("eth0", now_s=host.now_s)
    assert [entry.age_s for entry in kept] == pytest.approx([3 * TICK_S, 2 * TICK_S, TICK_S])
    assert host.decide().state.interfaces[0].counters_s == host.now_s
    assert host.readings.earlier("eth0", now_s=host.now_s) == ()
    assert host.tick()


def test_ticks_as_long_as_the_rest_decide_each_time(host: Host) -> None:
    assert not host.tick(tick_s=REST_S)


def test_the_shortest_ticks_keep_no_more_readings_than_they_may(host: Host) -> None:
    while host.tick(tick_s=0.02):
        pass
    assert 10 <= len(host.readings.earlier("eth0", now_s=host.now_s)) <= KEPT_MAX


def test_another_policy_ends_the_rest_though_it_says_the_same(host: Host) -> None:
    host.policy = load(TEXT)
    assert not host.tick()


def test_a_wall_clock_that_is_set_ends_the_rest_where_there_are_schedules(tmp_path: Path, host: Host) -> None:
    schedule = '[[schedule]]\nname = "n"\nfrom = "22:00"\nto = "06:00"\ntimezone = "UTC"\n'
    folder = tmp_path / "timed"
    folder.mkdir()
    timed = Host(folder, host.traffic, text=TEXT + schedule + '[schedule.class.storage]\nceiling = "50 %"\n')
    assert timed.tick()
    host.wall_s = timed.wall_s = -3000.0
    assert host.tick()
    assert not timed.tick()


def test_ceilings_that_the_guard_opened_end_the_rest(host: Host) -> None:
    host.egress_trees.reopened()
    assert not host.tick()


def test_an_interface_that_is_not_ours_any_more_ends_the_rest(host: Host) -> None:
    host.egress_trees.release("eth0")
    assert not host.tick()


def test_a_report_of_delay_ends_the_rest_with_counters_that_serve_the_decision(host: Host) -> None:
    def report(trip_s: float, delivered_bytes: int) -> None:
        one = connection(trip_s, delivered_bytes)
        host.flows.report("s-1", [one], now_s=host.now_s)

    report(0.004, 0)
    measured = host.flows.samples(interface_of=lambda _: "eth0", now_s=host.now_s)["eth0"]
    classes, age_s = host.egress_trees.read("eth0", fresh_s=0.0)
    host.now_s += TICK_S
    classes, age_s = host.egress_trees.read("eth0", fresh_s=0.0)
    sample = InterfaceSample("eth0", counters_age_s=age_s, classes=classes, flows=measured)
    decision = decide(now_s=host.now_s, state=host.state, measurements=Measurements((sample,)), policy=host.policy)
    host.state = decision.state
    host.readings.decided(decision, Measurements((sample,)), policy=host.policy, now_s=host.now_s)
    host.now_s += TICK_S / 2
    report(0.004, 9_000)
    assert host.tick(tick_s=TICK_S / 2)
    host.now_s += TICK_S / 2
    report(0.2, 18_000)
    assert not host.tick(tick_s=TICK_S / 2)
    assert host.readings.news
    assert not host.readings.rests, "the tick that waits for a burst waits no longer than where something is followed"


def test_reports_that_were_replaced_since_a_decision_are_kept_and_no_others() -> None:
    table = FlowTable()

    def report(trip_s: float, now_s: float) -> None:
        table.report("s-1", [connection(trip_s, 0)], now_s=now_s)

    def replaced(now_s: float) -> list[tuple[float | None, float]]:
        found = table.replaced(interface_of=lambda _: "eth0", now_s=now_s)
        return [(one.rtt_s, one.age_s) for one in found.get("eth0", ())]

    report(0.01, 0.0)
    table.taken(now_s=0.05)
    report(0.02, 0.1)  # the decision has seen the one that it replaces
    assert replaced(0.1) == []
    report(0.03, 0.2)
    ((trip_s, age_s),) = replaced(0.3)
    assert trip_s == 0.02
    assert age_s == pytest.approx(0.2)
    table.taken(now_s=0.3)
    assert replaced(0.3) == []


def test_of_a_session_that_has_ended_no_replaced_report_is_left_to_be_nobodys() -> None:
    table = FlowTable()
    for session in ("s-1", "s-2"):
        table.report(session, [connection(0.01, 0)], now_s=0.1)
        table.report(session, [connection(0.02, 0)], now_s=0.2)
    table.forget("s-1")
    found = table.replaced(interface_of=lambda _: "eth0", now_s=0.3)["eth0"]
    assert [one.key.partition("/")[0] for one in found] == ["s-2"]


@pytest.mark.parametrize("sessions", [1, 16, 256])
def test_of_very_many_reports_a_tick_looks_at_no_more_than_a_decision(sessions: int) -> None:
    table, taken = FlowTable(), list[str]()
    for number in range(sessions):
        many = [connection(0.01, 0, port=port) for port in range(2 * SAMPLES_MAX)]
        table.report(f"s-{number}", many, now_s=1.0)

    def interface_of(peer: str) -> str:
        taken.append(peer)
        return "eth0"

    found = table.reported_since(0.5, interface_of=interface_of, now_s=1.1)
    assert len(found["eth0"]) == SAMPLES_MAX
    assert len(taken) <= max(SAMPLES_MAX, SAMPLES_PER_SESSION_MIN * sessions)
    assert table.reported_since(1.0, interface_of=interface_of, now_s=1.1) == {}


def test_of_each_session_the_last_reports_are_looked_at() -> None:
    table = FlowTable()
    for number in range(SAMPLES_MAX):
        for at_s in (1.0, 2.0):
            ports = range(10) if at_s == 1.0 else range(2)
            table.report(f"s-{number}", [connection(at_s, 0, port=port) for port in ports], now_s=at_s)
    found = table.reported_since(0.0, interface_of=lambda _: "eth0", now_s=2.0)["eth0"]
    assert {one.rtt_s for one in found} == {2.0}
    assert len({one.key for one in found}) == SAMPLES_MAX
