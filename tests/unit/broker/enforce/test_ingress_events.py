"""What arrives goes on arriving when an IFB goes, from the moment the kernel says so; on a kernel in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from msgspec.structs import replace

from broker.enforce.inbound_rules import InboundRules
from broker.enforce.ingress import IngressTrees
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import Measurements
from broker.policy.toml import load
from shaping.journal import Journal
from shaping.netlink.link_events import LinkChanges
from shaping.shaper import Shaper

POLICY = load('version = 1\n[[interface]]\nname = "eth0"\negress = "20 Mbit/s"\n')
DEVICE = "hqifb1"


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel(("eth0",))


@pytest.fixture
def egress_trees(kernel: FakeKernel, tmp_path: Path) -> IngressTrees:
    """One that shapes what arrives at eth0."""
    egress_trees = IngressTrees(
        Shaper(kernel, Journal(tmp_path)).ingress,
        receivers=InboundRules(log=open_log(), clock=lambda: 0.0),
        log=open_log(),
        clock=lambda: 0.0,
    )
    decided = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation
    ingress = tuple(replace(entry, in_kernel=True) for entry in decided.interfaces)
    egress_trees.apply(replace(decided, ingress=ingress), policy=POLICY, passed=(), present=frozenset({"eth0"}))
    assert egress_trees.names == {"eth0"}
    return egress_trees


@pytest.mark.parametrize("changes", [LinkChanges(names=frozenset({DEVICE})), LinkChanges(lost=True)])
def test_what_is_heard_of_an_ifb_is_looked_into_at_once(
    egress_trees: IngressTrees, kernel: FakeKernel, changes: LinkChanges
) -> None:
    egress_trees.note(changes)
    assert egress_trees.names == {"eth0"}
    kernel.stop_device(DEVICE)
    assert not kernel.arrives("eth0")
    egress_trees.note(changes)
    assert kernel.arrives("eth0")
    assert [alarm.code for alarm in egress_trees.alarms()] == ["ingress-failed"]


def test_events_of_other_links_cost_no_look(egress_trees: IngressTrees, kernel: FakeKernel) -> None:
    kernel.stop_device(DEVICE)
    egress_trees.note(LinkChanges(names=frozenset({"eth0", "hqifbs"})))
    assert egress_trees.names == {"eth0"}
