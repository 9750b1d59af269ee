"""The roster follows links that come, go and are renamed; on a kernel in memory that says what somebody did."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_kernel import FakeKernel

from broker.enforce.egress import EgressTrees
from broker.enforce.interfaces import LOOK_S, ShapedInterfaces
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.interfaces import Links
from broker.model.values import Measurements
from broker.policy.toml import load
from hive_qos.errors import KernelRejectedError
from shaping.journal import Journal
from shaping.netlink.link_events import LinkChanges
from shaping.shaper import Shaper

POLICY = load(
    "version = 1\n" + "".join(f'[[interface]]\nname = "{name}"\negress = "20 Mbit/s"\n' for name in ("eth0", "eth1"))
)


@dataclass
class Host:
    """One roster over interfaces eth0 and spare0."""

    folder: Path
    kernel: FakeKernel = field(default_factory=lambda: FakeKernel(("eth0", "spare0")))

    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder)
        self.egress_trees = EgressTrees(Shaper(self.kernel, self.journal), log=open_log(), clock=lambda: 0.0)
        self.shaped_interfaces = ShapedInterfaces(
            self.egress_trees,
            kernel=self.kernel,
            journal=self.journal,
            links=Links(lambda _: None),
            log=open_log(),
            clock=lambda: self.now_s,
        )
        self.allocation = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation
        self.shaped_interfaces.attach_all(self.allocation, policy=POLICY, class_cgroups=())

    def look(self) -> frozenset[str]:
        """An event, and the tick after it; what is held then."""
        self.shaped_interfaces.follow(POLICY)
        self.shaped_interfaces.apply(self.allocation, policy=POLICY, class_cgroups=())
        return self.egress_trees.names

    def shaped(self) -> set[str]:
        return {name for name in self.kernel.interfaces() if self.kernel.observe(name) is not None}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_one_that_is_renamed_to_another_name_of_the_policy_keeps_its_queues(host: Host) -> None:
    host.kernel.enqueue("eth0", 0x310, 5)
    host.kernel.rename("eth0", "eth1")
    assert host.look() == host.shaped() == {"eth1"}
    assert (host.kernel.backlog("eth1", 0x310), host.journal.interfaces()) == (5, ("eth1",))


def test_one_that_is_renamed_to_a_name_of_nobodys_is_given_back(host: Host) -> None:
    host.kernel.rename("eth0", "mine0")
    assert host.look() == set()
    assert (host.shaped(), host.journal.interfaces()) == (set(), ())


def test_one_that_gets_a_name_of_the_policy_is_shaped_at_once(host: Host) -> None:
    host.kernel.rename("spare0", "eth1")
    assert host.look() == host.shaped() == {"eth0", "eth1"}


def test_another_one_by_the_same_name_is_shaped_anew(host: Host) -> None:
    host.kernel.replace_interface("eth0")
    assert host.shaped() == set()
    assert host.look() == host.shaped() == {"eth0"}


def test_events_concern_what_is_held_and_what_is_waited_for_alone(host: Host) -> None:
    numbers = host.kernel.numbers()
    assert host.shaped_interfaces.concerned(LinkChanges(numbers=frozenset({numbers["eth0"]})), POLICY)
    assert host.shaped_interfaces.concerned(LinkChanges(names=frozenset({"eth1"})), POLICY)
    assert host.shaped_interfaces.concerned(LinkChanges(lost=True), POLICY)
    assert not host.shaped_interfaces.concerned(
        LinkChanges(frozenset({numbers["spare0"]}), frozenset({"spare0"})), POLICY
    )


def test_links_that_the_kernel_does_not_list_are_looked_at_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, int]:
        raise KernelRejectedError("list links", errno_value=errno.ENOBUFS, detail="No buffer space available")

    host.kernel.rename("eth0", "eth1")
    with monkeypatch.context() as patch:
        patch.setattr(host.kernel, "numbers", refuse)
        host.shaped_interfaces.follow(POLICY)
        assert host.egress_trees.names == {"eth0"}
    host.now_s += LOOK_S
    host.shaped_interfaces.apply(host.allocation, policy=POLICY, class_cgroups=())
    assert host.egress_trees.names == host.shaped() == {"eth1"}


def test_one_that_is_replaced_while_others_are_looked_at_is_found_at_the_next_look(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before = host.kernel.numbers()
        patch.setattr(host.kernel, "numbers", lambda: before)
        host.kernel.replace_interface("eth0")
        host.look()
    assert host.look() == host.shaped() == {"eth0"}
