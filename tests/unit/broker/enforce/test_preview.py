"""What a policy would do to the kernel: the same trees and operations as the daemon's, without touching anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.enforce.preview import Found, at_capacity, change, shapes_under, start
from broker.model.values import InterfaceSample, SchedulesNow
from broker.policy.toml import load
from broker.policy.types import Policy
from shaping.model.observations import Capabilities, PriorQdisc
from shaping.model.shapes import InterfaceShape
from shaping.model.tree import Tree
from shaping.plan.desired_tree import desired_tree

OFFERED = Capabilities(fq_codel=True)
HERE = frozenset({"eth0", "eth1"})


def policy(egress: str = "40 Mbit/s", *, name: str = "eth0", more: str = "") -> Policy:
    return load(f'version = 1\n[[interface]]\nname = "{name}"\negress = "{egress}"\n{more}')


def shapes(wanted: Policy) -> dict[str, InterfaceShape]:
    return shapes_under(wanted, [InterfaceSample("eth0")], SchedulesNow())


def tree(wanted: Policy) -> Tree:
    return desired_tree(shapes(wanted)["eth0"], OFFERED)


def test_the_same_policy_changes_nothing() -> None:
    (plan,) = change(shapes(policy()), shapes(policy()), present=HERE, found={}, capabilities=OFFERED)
    assert (plan.action, plan.operations) == ("unchanged", ())


def test_another_rate_changes_classes_in_place() -> None:
    (plan,) = change(shapes(policy()), shapes(policy("20 Mbit/s")), present=HERE, found={}, capabilities=OFFERED)
    assert plan.action == "change"
    assert all(line.startswith(("change class", "set gso")) for line in plan.operations)
    assert plan.capacity_bits_per_s == 19_400_000


def test_a_new_rule_is_a_filter_or_a_program_at_socket_creation() -> None:
    more = '[class.storage]\nmatch = [{ port = 873 }, { cgroup = "a.slice" }]\n'
    (plan,) = change(shapes(policy()), shapes(policy(more=more)), present=HERE, found={}, capabilities=OFFERED)
    assert "classify sockets of cgroup a.slice as storage" in plan.operations
    assert any(line.startswith("add u32 filter") for line in plan.operations)
    (back,) = change(shapes(policy(more=more)), shapes(policy()), present=HERE, found={}, capabilities=OFFERED)
    assert "stop classifying sockets of cgroup a.slice" in back.operations


def test_interfaces_that_come_and_go_are_built_and_given_back() -> None:
    other = shapes(policy(name="eth1"))
    plans = change(shapes(policy()), other, present=HERE, found={}, capabilities=OFFERED)
    assert [(plan.interface, plan.action) for plan in plans] == [("eth0", "give back"), ("eth1", "build")]
    (gone,) = change({}, shapes(policy(name="eth7")), present=HERE, found={}, capabilities=OFFERED)
    assert gone.action == "wait"


def test_what_somebody_configured_is_refused_and_nothing_counted_unless_the_broker_takes_over() -> None:
    foreign = {"eth0": Found(root=PriorQdisc("pfifo", 9))}
    for before in ({}, shapes(policy())):  # also where a broker that runs has lost its classes to it
        lost: dict[str, Any] = {"present": HERE, "found": foreign, "capabilities": OFFERED, "unshaped": {"eth0"}}
        (plan,) = change(before, shapes(policy()), **lost)
        assert (plan.action, plan.operations) == ("refused", ())
        (plan,) = change(before, shapes(policy()), **lost, take_over=True)
        assert plan.action == "build"
    (plan,) = start(shapes(policy()), found=foreign, capabilities=OFFERED)
    assert (plan.action, plan.operations) == ("refused", ())


def test_an_interface_without_its_classes_is_built_though_the_policy_stays() -> None:
    (plan,) = change(
        shapes(policy()), shapes(policy()), present=HERE, found={}, capabilities=OFFERED, unshaped={"eth0"}
    )
    assert plan.action == "build"


def test_a_start_builds_adopts_or_refuses_by_what_is_there() -> None:
    wanted = shapes(policy())

    def action(found: Found | None) -> str:
        (plan,) = start(wanted, found={} if found is None else {"eth0": found}, capabilities=OFFERED)
        return plan.action

    assert action(None) == "wait"
    assert action(Found(root=PriorQdisc("default", 0))) == "build"
    assert action(Found(root=PriorQdisc("tbf", 1))) == "refused"
    assert action(Found(tree=tree(policy("10 Mbit/s")))) == "adopt"
    ours = tree(policy())
    older = replace(ours, classes=(*ours.classes, replace(ours.classes[-1], minor=0x999)))
    assert action(Found(tree=older)) == "rebuild"


def test_a_capacity_that_was_measured_stays_where_the_rate_stays() -> None:
    low = shapes(at_capacity(policy(), {"eth0": 12_000_000}))["eth0"]
    assert 11_990_000 < low.capacity_bits_per_s < 12_010_000
