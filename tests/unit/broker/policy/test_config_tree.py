"""Whatever `broker.toml` is accepted, and whatever the link does, there is a tree that the kernel can be given."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from broker.enforce.shapes import CAPACITY_BITS_PER_S_MIN, RATE_BITS_PER_S_MIN, rules_of, shape_of
from broker.law.decide import decide
from broker.law.sharing.plan import ClassNeeds, plan
from broker.law.sharing.promises import promises_of
from broker.law.state import State
from broker.model.reasons import Reason
from broker.model.values import ClassAllocation, InterfaceAllocation, Measurements
from broker.policy.toml import EGRESS_BITS_PER_S_MIN, MATCH_RULES_MAX, ConfigurationErrors, load
from broker.policy.types import CLASS_NAMES, Policy
from shaping.model.observations import Capabilities
from shaping.model.shapes import InterfaceShape
from shaping.plan.desired_tree import desired_tree

GBIT = 10**9
CAPACITIES = st.one_of(
    st.integers(1, 2 * EGRESS_BITS_PER_S_MIN), st.integers(EGRESS_BITS_PER_S_MIN, 100 * GBIT), st.just(100 * GBIT)
)
SHARES = st.one_of(
    st.integers(0, 45).map(lambda percent: f"{percent} %"),
    st.integers(1, 100_000).map(lambda rate: f"{rate} kbit/s"),
    st.sampled_from(("0 %", "1 bit/s", "100 %")),
)
RULES = st.one_of(
    st.integers(1, 65535).map(lambda port: f"{{ port = {port} }}"),
    st.integers(0, 63).map(lambda dscp: f"{{ dscp = {dscp} }}"),
    st.integers(0, 2**32 - 2).map(lambda uid: f"{{ uid = {uid} }}"),
    st.sampled_from(("a", "a/b.slice", "/x y/", "ä", r"a\u0000b", r"a\u001bb", "a/../b", "..")).map(
        lambda path: f'{{ cgroup = "{path}" }}'
    ),
)


@st.composite
def configurations(draw: st.DrawFn) -> str:
    egress = draw(st.one_of(st.just("auto"), CAPACITIES.map(lambda rate: f"{rate} bit/s")))
    lines = ["version = 1", "[[interface]]", 'name = "eth0"', f'egress = "{egress}"']
    for name in draw(st.sets(st.sampled_from(CLASS_NAMES))):
        lines.append(f"[class.{name}]")
        keys = draw(st.sets(st.sampled_from(("guarantee", "floor", "ceiling")), max_size=2))
        lines += [f'{key} = "{draw(SHARES)}"' for key in sorted(keys)]
        most = draw(st.sampled_from((0, 3, MATCH_RULES_MAX)))
        lines.append(f"match = [{', '.join(draw(st.lists(RULES, max_size=most, unique=True)))}]")
    return "\n".join(lines)


def allocated(policy: Policy, capacity_bits_per_s: int, *, waiting: bool) -> InterfaceAllocation:
    """What the plan gives at a capacity that was measured, with everybody or nobody wanting all of it."""
    wanted = capacity_bits_per_s if waiting else 0
    needs = [ClassNeeds(entry, wanted, waiting, waiting, wanted, 0) for entry in policy.classes]
    promised = promises_of(policy.classes, capacity_bits_per_s)
    plans = plan(needs, promised=promised, capacity_bits_per_s=capacity_bits_per_s, storage_waits=None)
    reason = Reason("test", "")
    return InterfaceAllocation(
        "eth0", "egress", capacity_bits_per_s, "measured", reason,
        tuple(
            ClassAllocation(
                entry.name, entry.rate_bits_per_s, entry.ceil_bits_per_s, need.policy.priority,
                0, 0, 0, 0, 0, None, None, None, reason,
            )
            for entry, need in zip(plans, needs, strict=True)
        ),
    )  # fmt: skip


def assert_buildable(shape: InterfaceShape) -> None:
    tree = desired_tree(shape, Capabilities())
    assert len(tree.classes) == 26
    assert sum(entry.rate_bits_per_s for entry in shape.classes) <= shape.capacity_bits_per_s
    assert all(entry.rate_bits_per_s >= RATE_BITS_PER_S_MIN for entry in shape.classes)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # most are refused
@given(configurations(), CAPACITIES, st.booleans())
def test_every_policy_that_is_accepted_gives_a_tree_at_every_capacity(
    text: str, capacity_bits_per_s: int, waiting: bool
) -> None:
    try:
        policy = load(text)
    except ConfigurationErrors:
        reject()
    rules = rules_of(policy, class_cgroups=tuple((name, f"hive-qos/{name}") for name in CLASS_NAMES))
    assert_buildable(shape_of(allocated(policy, capacity_bits_per_s, waiting=waiting), rules=rules))
    first = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=policy).allocation.interfaces[0]
    assert_buildable(shape_of(first, rules=rules))


@pytest.mark.parametrize("egress", ["100 kbit/s", "101 kbit/s", "400 kbit/s", "100 Gbit/s", "10 Tbit/s"])
def test_the_smallest_and_the_largest_capacity_can_be_built(egress: str) -> None:
    policy = load(f'version = 1\n[[interface]]\nname = "eth0"\negress = "{egress}"\n')
    first = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=policy).allocation.interfaces[0]
    shape = shape_of(first, rules=())
    assert_buildable(shape)
    assert shape.capacity_bits_per_s == first.capacity_bits_per_s, "what is configured is not clamped"


def test_an_estimate_below_what_can_be_shaped_is_raised_to_it_with_its_ceilings() -> None:
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n[class.storage]\nceiling = "50 %"\n')
    shape = shape_of(allocated(policy, 1_000, waiting=True), rules=())
    assert_buildable(shape)
    ceilings = {entry.name: entry.ceil_bits_per_s for entry in shape.classes}
    assert shape.capacity_bits_per_s == ceilings["compute"] == CAPACITY_BITS_PER_S_MIN
    assert ceilings["storage"] <= CAPACITY_BITS_PER_S_MIN // 2
