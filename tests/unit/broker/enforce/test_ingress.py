"""Ways in that our kernel shapes: whatever it refuses ends no tick, is said, and is tried again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from msgspec.structs import replace

from broker.enforce.egress import EgressTrees
from broker.enforce.inbound_rules import InboundRules
from broker.enforce.ingress import LOST_AGAIN_S, RETRY_S, IngressTrees
from broker.enforce.shapes import shape_of
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import Allocation, InterfaceAllocation, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy
from hive_qos.errors import KernelRejectedError
from shaping.journal import Journal
from shaping.model.observations import ClassCounters, InterfaceCounters
from shaping.shaper import Shaper

NAMES = ("eth0", "eth1", "eth2")
POLICY = load("version = 1\n" + "".join(f'[[interface]]\nname = "{name}"\negress = "20 Mbit/s"\n' for name in NAMES))


class Host:
    """A plant whose every way in is to be shaped."""

    def __init__(self, folder: Path) -> None:
        self.kernel, self.now_s = FakeKernel(NAMES), 0.0
        self.shaper = Shaper(self.kernel, Journal(folder))
        self.egress_trees = IngressTrees(
            self.shaper.ingress,
            receivers=InboundRules(log=open_log(), clock=lambda: self.now_s),
            log=open_log(),
            clock=lambda: self.now_s,
        )
        decided = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation
        self.wanted = Allocation(
            interfaces=decided.interfaces,
            ingress=tuple(replace(one, in_kernel=True) for one in decided.interfaces),
        )
        self.apply(self.wanted)

    def apply(self, allocation: Allocation, policy: Policy = POLICY) -> None:
        self.egress_trees.apply(allocation, policy=policy, passed=(), present=frozenset(NAMES))

    def codes(self) -> list[tuple[str, str]]:
        return [(alarm.code, alarm.subject) for alarm in self.egress_trees.alarms()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_look_that_the_kernel_refuses_is_an_alarm_until_the_next_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise KernelRejectedError("look", errno_value=errno.ENOBUFS, detail="No buffer space available")

    with monkeypatch.context() as patch:
        patch.setattr(host.kernel, "running_number", refuse)
        host.egress_trees.check()
    assert host.codes() == [("ingress-failed", name) for name in NAMES]
    host.egress_trees.check()
    assert (host.codes(), host.egress_trees.names) == ([], set(NAMES))


def test_an_ifb_that_is_gone_while_links_cannot_be_listed_is_found_out_by_the_next_look(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> tuple[str, ...]:
        raise KernelRejectedError("list links", errno_value=errno.ENOBUFS, detail="No buffer space available")

    host.kernel.delete_ifb("hqifb1")
    with monkeypatch.context() as patch:
        patch.setattr(host.kernel, "interfaces", refuse)
        patch.setattr(host.kernel, "numbers", refuse)
        host.egress_trees.check()
    assert host.codes() == [("ingress-failed", "eth0")]
    assert not host.kernel.arrives("eth0")
    host.egress_trees.check()
    assert host.kernel.arrives("eth0")
    assert host.egress_trees.names == {"eth1", "eth2"}


def test_an_ifb_that_somebody_deletes_is_made_again_at_the_next_decision_and_once_a_second_at_most(host: Host) -> None:
    def lost() -> None:
        host.kernel.delete_ifb("hqifb1")
        host.egress_trees.check()
        assert host.kernel.arrives("eth0")
        assert host.codes() == [("ingress-failed", "eth0")]

    for since_made_s, waits_s in ((LOST_AGAIN_S, 0.0), (0.25, 0.75), (0.25, 0.75)):
        host.now_s += since_made_s
        lost()
        if waits_s:
            host.now_s += waits_s - 0.125
            host.apply(host.wanted)
            assert host.egress_trees.names == {"eth1", "eth2"}
            host.now_s += 0.125
        host.apply(host.wanted)
        assert (host.codes(), host.egress_trees.names) == ([], set(NAMES))
        assert "hqifb1" in host.kernel.ifbs()


def test_of_several_one_is_given_back_at_each_tick(host: Host) -> None:
    for left in (2, 1, 0):
        host.apply(Allocation(interfaces=host.wanted.interfaces))
        assert (len(host.egress_trees.names), len(host.kernel.ifbs())) == (left, left)


def test_one_that_fails_leaves_the_rest_to_the_next_tick(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KernelRejectedError("change", errno_value=errno.ENOMEM, detail="Cannot allocate memory")

    wanted = replace(host.wanted, ingress=tuple(_halved(one) for one in host.wanted.ingress))
    with monkeypatch.context() as patch:
        patch.setattr(host.kernel, "apply", refuse)
        for failed in range(1, 4):
            host.apply(wanted)
            assert len(host.codes()) == failed
    host.now_s += RETRY_S
    host.apply(wanted)
    assert (host.codes(), host.egress_trees.names) == ([], set(NAMES))


def _halved(inbound: InterfaceAllocation) -> InterfaceAllocation:
    classes = tuple(
        replace(one, rate_bits_per_s=one.rate_bits_per_s // 2, ceil_bits_per_s=one.ceil_bits_per_s // 2)
        for one in inbound.classes
    )
    return replace(inbound, capacity_bits_per_s=inbound.capacity_bits_per_s // 2, classes=classes)


def test_what_waits_in_an_ifb_is_read_while_it_stands_and_nothing_else(host: Host) -> None:
    assert [entry.name for entry in host.egress_trees.read("eth0") or ()] == list(CLASS_NAMES)
    assert host.egress_trees.read("eth9") == ()
    host.kernel.delete_ifb("hqifb1")
    assert host.egress_trees.read("eth0") is None
    assert host.egress_trees.alarms() == (), "the next look at the IFB says what is wrong with it"


def test_whatever_was_counted_is_told_of_both_directions_alike(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {
        name: ClassCounters(sent_bytes=1000 + at, dropped_packets=at, backlog_bytes=3)
        for at, name in enumerate(CLASS_NAMES)
    }
    shaper = host.shaper
    out = EgressTrees(shaper, log=open_log(), clock=lambda: host.now_s)
    out.attach(shape_of(host.wanted.interfaces[0], rules=()))
    reported = InterfaceCounters("eth0", classes=counted, direct_packets=0)
    monkeypatch.setattr(shaper, "counters", lambda *_, **__: reported)
    monkeypatch.setattr(shaper.ingress, "counters", lambda _: reported)
    samples = host.egress_trees.read("eth0")
    assert samples == out.read("eth0", fresh_s=0.0)[0]
    assert samples is not None
    assert (samples[1].name, samples[1].sent_bytes, samples[1].dropped_packets) == (CLASS_NAMES[1], 1001, 1)
