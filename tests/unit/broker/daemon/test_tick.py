"""When TCP is looked at before a decision, when what it said last will do, and what goes on without a decision."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from broker.daemon.peer_link import PeerLink
from broker.daemon.tick import TickRunner, looks_first, looks_soon
from broker.enforce.egress import CLASSIFY_S, EgressTrees
from broker.enforce.own_cgroups import OwnCgroups
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.measure import tcp_sockets
from broker.measure.budget import CpuBudget
from broker.measure.flow_table import FlowTable
from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import TcpConnection
from broker.measure.tcp_sockets import SLICE_S, TcpWatch
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from broker.process.log import open_log
from shaping.journal import Journal
from shaping.shaper import Shaper
from shaping.testing import FakeKernel

TEXT = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'
PAGES = 5


@pytest.mark.parametrize(
    ("ingress", "between", "asked", "looks"),
    [
        ("off", False, False, True),  # a tick
        ("off", True, False, False),  # an announcement, and nobody sends to us who could be asked to hold back
        ("auto", True, False, True),
        ("auto", True, True, False),  # a lease does not depend on it
        ("off", False, True, False),
    ],
)
def test_tcp_is_looked_at_where_the_decision_rests_on_it(ingress: str, between: bool, asked: bool, looks: bool) -> None:
    assert looks_first(load(f'{TEXT}ingress = "{ingress}"\n'), between=between, asked=asked) is looks


def test_who_begins_to_send_is_looked_for_as_soon_as_there_is_training_to_protect() -> None:
    policy = load(f'{TEXT}ingress = "40 Mbit/s"\n')

    def decided(now_s: float, *bursts: Burst, state: State) -> Decision:
        sample = InterfaceSample("eth0", None, 0.0, tuple(ClassSample(name, 0) for name in CLASS_NAMES), bursts=bursts)
        return decide(now_s=now_s, state=state, measurements=Measurements((sample,)), policy=policy)

    quiet = decided(0.0, state=State())
    trains = decided(0.1, Burst("job", 1, 4_000_000, 0.0, 1.0), state=quiet.state)
    after = decided(30.0, state=trains.state)
    assert not trains.holds, "nobody sends yet"
    assert [looks_soon(decision) for decision in (quiet, trains, after)] == [False, True, False]


class Host:
    """What goes on at ticks that only read; each page of a list of TCP connections takes a whole slice."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.cpu_s = 0.0
        self.lists = 0
        self.swept: list[tuple[bool, bool]] = []
        monkeypatch.setattr(tcp_sockets, "CpuBudget", partial(CpuBudget, cpu_clock=lambda: self.cpu_s))
        monkeypatch.setattr(tcp_sockets, "tcp_pages", self.pages)
        shaper = Shaper(FakeKernel(("eth0",)), Journal(folder))
        egress_trees, self.flows = EgressTrees(shaper, log=open_log(), clock=lambda: self.now_s), FlowTable()
        self.watch, self.policy = TcpWatch(log=open_log(), clock=lambda: self.now_s), load(TEXT)
        nothing = cast(Any, None)  # no decision is made here
        self.deciding = TickRunner(
            measuring=nothing,
            egress_trees=egress_trees,
            shaped_interfaces=nothing,
            ingress_trees=nothing,
            peer_link=PeerLink(),
            readings=nothing,
            rate_watch=nothing,
            tcp_watch=self.watch,
            flows=self.flows,
            earlier=cast(Any, self),
            own_cgroups=OwnCgroups(wanted=False, log=open_log()),
            clock=lambda: self.now_s,
        )

    def look(self, rules: object, *, classified: bool, now_s: float, urgent: bool) -> None:
        """As `EarlierSockets`."""
        self.swept.append((classified, urgent))

    def pages(self, *, clock: Callable[[], float]) -> Iterator[list[TcpConnection]]:
        self.lists += 1
        for _ in range(PAGES):
            self.cpu_s += SLICE_S
            yield []

    def tick(self) -> None:
        self.now_s += 0.1
        self.deciding.keep_up(self.policy)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_rules_are_kept_as_often_at_ticks_that_read_and_sweeps_get_a_slice_of_each(host: Host) -> None:
    for _ in range(31):
        host.tick()
    times = [number for number, (classified, _) in enumerate(host.swept) if classified]
    assert len(host.swept) == 31
    assert {later - former for former, later in itertools.pairwise(times)} <= {5, 6}
    assert CLASSIFY_S == 0.5
    assert not any(urgent for _, urgent in host.swept)


def test_a_list_of_connections_that_is_under_way_goes_on_at_ticks_that_read_and_no_other_begins(host: Host) -> None:
    host.watch.look(host.flows, matching=PortClasses(host.policy), now_s=host.now_s)
    assert host.watch.under_way
    for _ in range(PAGES):
        host.tick()
    assert not host.watch.under_way
    for _ in range(100):
        host.tick()
    assert host.lists == 1
