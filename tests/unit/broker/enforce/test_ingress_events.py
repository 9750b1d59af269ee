"""What arrives goes on arriving when an IFB goes, from the moment the kernel says so; on a kernel in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.enforce.inbound_rules import Receivers
from broker.enforce.ingress import IngressPlant
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.link_events import Heard
from broker.model.values import Measurements
from broker.policy.toml import load
from broker.process.log import open_log
from shaping.journal import Journal
from shaping.shaper import Shaper
from shaping.testing import FakeKernel

POLICY = load('version = 1\n[[interface]]\nname = "eth0"\negress = "20 Mbit/s"\n')
DEVICE = "hqifb1"


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel(("eth0",))


@pytest.fixture
def plant(kernel: FakeKernel, tmp_path: Path) -> IngressPlant:
    """One that shapes what arrives at eth0."""
    plant = IngressPlant(
        Shaper(kernel, Journal(tmp_path)),
        receivers=Receivers(log=open_log(), clock=lambda: 0.0),
        log=open_log(),
        clock=lambda: 0.0,
    )
    decided = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation
    ingress = tuple(replace(entry, in_kernel=True) for entry in decided.interfaces)
    plant.apply(replace(decided, ingress=ingress), policy=POLICY, passed=(), present=frozenset({"eth0"}))
    assert plant.names == {"eth0"}
    return plant


@pytest.mark.parametrize("heard", [Heard(names=frozenset({DEVICE})), Heard(lost=True)])
def test_what_is_heard_of_an_ifb_is_looked_into_at_once(plant: IngressPlant, kernel: FakeKernel, heard: Heard) -> None:
    plant.hear(heard)
    assert plant.names == {"eth0"}
    kernel.stop_device(DEVICE)
    assert not kernel.arrives("eth0")
    plant.hear(heard)
    assert kernel.arrives("eth0")
    assert [alarm.code for alarm in plant.alarms()] == ["ingress-failed"]


def test_events_of_other_links_cost_no_look(plant: IngressPlant, kernel: FakeKernel) -> None:
    kernel.stop_device(DEVICE)
    plant.hear(Heard(names=frozenset({"eth0", "hqifbs"})))
    assert plant.names == {"eth0"}
