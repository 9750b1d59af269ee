"""The trees of what leaves, where somebody else changes them: limits go on, and all that is ours is given back."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_kernel import FakeClassifier, FakeKernel

from broker.enforce.egress import DIRECT_OVER_S, RETRY_S, VERIFY_S, EgressTrees
from broker.events.log import open_log
from hive_qos.errors import KernelRejectedError
from shaping.journal import Journal
from shaping.model.observations import PriorQdisc
from shaping.model.shapes import ClassShape, InterfaceShape, Rule
from shaping.model.tree import AddClass, ChangeClass, Operation
from shaping.plan.desired_tree import desired_tree
from shaping.shaper import Shaper

LINE = 100_000_000
STORAGE = 2


class Host:
    def __init__(self, folder: Path) -> None:
        self.kernel, self.classifier, self.journal = FakeKernel(("eth0",)), FakeClassifier(), Journal(folder)
        self.now_s = 0.0
        shaper = Shaper(self.kernel, self.journal, classifier=self.classifier)
        self.trees = EgressTrees(shaper, log=open_log(), clock=lambda: self.now_s)

    def tick(self, shape: InterfaceShape, *, after_s: float) -> None:
        self.now_s += after_s
        self.trees.read("eth0", fresh_s=0.0)
        self.trees.apply(shape)

    def storage_ceiling(self) -> int:
        tree = self.kernel.observe("eth0")
        assert tree is not None
        wanted = desired_tree(shape(LINE), self.kernel.capabilities())
        minor = sorted(spec.minor for spec in wanted.classes if spec.parent_minor == wanted.classes[0].minor)[STORAGE]
        return next(spec.ceil_bits_per_s for spec in tree.classes if spec.minor == minor)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def shape(storage: int, *, rules: tuple[Rule, ...] = (), gso_max_segs: int | None = None) -> InterfaceShape:
    names = ("control", "compute", "storage", "other")
    ceilings = {"storage": storage}
    classes = tuple(ClassShape(name, LINE // 50, ceilings.get(name, LINE), place) for place, name in enumerate(names))
    return InterfaceShape("eth0", LINE, classes, rules=rules, gso_max_segs=gso_max_segs)


def test_a_class_that_somebody_adds_to_the_tree_stops_no_limit(host: Host) -> None:
    host.trees.attach(shape(LINE))
    host.tick(shape(LINE // 50), after_s=1.0)
    assert host.storage_ceiling() == LINE // 50
    tree = host.kernel.observe("eth0")
    assert tree is not None
    host.kernel.apply("eth0", [AddClass(replace(tree.classes[-1], minor=0x999))])
    host.tick(shape(LINE // 50), after_s=VERIFY_S + 0.1)
    host.tick(shape(LINE), after_s=VERIFY_S + 0.1)
    assert host.storage_ceiling() == LINE
    assert not host.trees.alarms()


def test_where_somebody_replaced_our_root_all_else_of_ours_is_given_back_at_the_end(host: Host) -> None:
    ours = shape(LINE, rules=(Rule(target="storage", uid=1000),), gso_max_segs=1)
    before = host.kernel.segments("eth0")
    host.trees.attach(ours)
    host.trees.classify(at_once=True)
    assert host.classifier.rules
    host.kernel.set_root("eth0", PriorQdisc("fq", 0x8001, {"raw": ""}))
    host.tick(ours, after_s=1.0)
    host.tick(ours, after_s=RETRY_S + 0.1)
    assert host.trees.alarms()
    assert host.trees.close() == ()
    assert host.kernel.root("eth0").kind == "fq", "it is somebody else's"
    assert host.kernel.segments("eth0") == before
    assert not host.classifier.rules
    assert host.journal.interfaces() == ()


def test_packets_that_pass_unshaped_are_an_alarm_from_the_second_reading_on_and_until_a_minute_after_the_last(
    host: Host,
) -> None:
    host.kernel.direct_packets = 7  # as it was built
    host.trees.attach(shape(LINE))
    for _ in range(2):
        host.tick(shape(LINE), after_s=1.0)
        assert not host.trees.alarms()
    host.kernel.direct_packets = 9
    host.tick(shape(LINE), after_s=1.0)
    assert [one.code for one in host.trees.alarms()] == ["unshaped-packets"]
    host.tick(shape(LINE), after_s=DIRECT_OVER_S - 1.0)
    assert host.trees.alarms()
    host.tick(shape(LINE), after_s=1.1)
    assert not host.trees.alarms()


def test_a_repair_that_fails_is_made_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.trees.attach(shape(LINE // 50))
    host.tick(shape(LINE // 50), after_s=1.0)
    tree = host.kernel.observe("eth0")
    assert tree is not None
    spoilt = next(spec for spec in tree.classes if spec.ceil_bits_per_s == LINE // 50)
    host.kernel.apply("eth0", [ChangeClass(replace(spoilt, ceil_bits_per_s=LINE))])
    apply = host.kernel.apply

    def refused(interface: str, operations: Sequence[Operation]) -> None:
        monkeypatch.setattr(host.kernel, "apply", apply)
        raise KernelRejectedError("change classes", errno_value=errno.ENOBUFS, detail="No buffer space")

    monkeypatch.setattr(host.kernel, "apply", refused)
    host.tick(shape(LINE // 50), after_s=VERIFY_S + 0.1)
    assert [one.code for one in host.trees.alarms()] == ["apply-failed"]
    host.tick(shape(LINE // 50), after_s=RETRY_S + 0.1)
    assert not host.trees.alarms()
    assert host.storage_ceiling() == LINE // 50
