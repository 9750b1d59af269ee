"""Who has nothing more to send says nothing of what the network takes: only those with more to send count."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import ClassSample, FlowSample, InterfaceAllocation, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy

POLICY = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')
AUTO = load('version = 1\n[[interface]]\nname = "a"\negress = "auto"\n')
NAMED = load('version = 1\n[[interface]]\nname = "a"\negress = "1 Gbit/s"\n')
RATE, WIRE = 15e6, 1.0456
PATH_S, MORE_S = 0.010, 0.020
"""A round trip, and what stands elsewhere from then on: less than bloat, more than nothing."""
KERNEL = ("tcp-info", None)


def decided(
    *, application_limited: bool, seconds: float = 12.0, from_s: float = 6.0, more_s: float = MORE_S,
    traffic_class: str = "storage", lost: float = 0.0, policy: Policy = POLICY,
    by: Sequence[tuple[str, int | None]] = (KERNEL, KERNEL), peers: int = 2, drops: str = "",
) -> list[InterfaceAllocation]:  # fmt: skip
    """One class to two hosts at less than half of the link; the shaper is never what limits. From `from_s` on packets
    take longer, or are lost. `by`: for each connection who measures it, and whose program reports it.
    `drops`: the class whose queue here drops a packet a second."""
    state, found, sent, gone = State(), [], 0.0, 0.0
    for tick in range(1, int(seconds * 10) + 1):
        now_s, sent = tick / 10, sent + RATE / 80
        gone += lost * RATE / 80 / 2 / 1514 if now_s > from_s else 0.0
        flows = tuple(
            FlowSample(
                f"tcp/{873 + number}", f"10.0.0.{2 + number % peers}", traffic_class, source, 0.0,
                rtt_s=PATH_S + (more_s if now_s > from_s else 0.0), rtt_s_min=PATH_S,
                delivered_bytes=int(sent / len(by) / WIRE), sent_packets=int(sent / len(by) / 1514),
                lost_packets=int(gone), delivery_rate_bits_per_s=int(RATE / len(by)), uid=uid,
                application_limited=application_limited,
            )
            for number, (source, uid) in enumerate(by)
        )  # fmt: skip
        classes = tuple(
            ClassSample(name, int(sent) if name == traffic_class else 0, 0, int(now_s) if name == drops else 0)
            for name in CLASS_NAMES
        )  # fmt: skip
        sample = InterfaceSample("a", 1_000_000_000, 0.0, classes, flows, received_bytes=0)
        decision = decide(now_s=now_s, state=state, measurements=Measurements((sample,)), policy=policy)
        state = decision.state
        found.append(decision.allocation.interfaces[0])
    return found


def test_a_rate_that_the_application_chose_is_not_taken_for_what_the_network_carries() -> None:
    assert {entry.capacity_bits_per_s for entry in decided(application_limited=True)} == {38_800_000}
    assert {entry.capacity_source for entry in decided(application_limited=True)} == {"configured"}


@pytest.mark.parametrize("application_limited", [True, False])
def test_without_a_queue_neither_lowers_anything(application_limited: bool) -> None:
    found = decided(application_limited=application_limited, from_s=1e9)
    assert {entry.capacity_bits_per_s for entry in found} == {38_800_000}


@pytest.mark.parametrize("traffic_class", ["storage", "compute"])
@pytest.mark.parametrize(("application_limited", "least", "most"), [(True, 0.75, 0.81), (False, 0.5, 0.7)])
def test_a_first_cut_for_bloat_counts_what_came_through_only_if_somebody_had_more_to_send(
    traffic_class: str, application_limited: bool, least: float, most: float
) -> None:
    """Training counts, too: what the network holds back of it is less than what it has to send."""
    found = decided(application_limited=application_limited, more_s=0.1, traffic_class=traffic_class)
    cut = next(entry for entry in found if entry.capacity_reason.code == "capped-by-delay")
    assert least < cut.capacity_bits_per_s / 38_800_000 < most


def test_far_below_the_cards_rate_a_queue_is_ours_where_somebody_had_more_to_send_and_is_cut_to_what_left() -> None:
    """A modem behind a fast card: half of the card's rate, and half of that, would change nothing."""
    found = decided(application_limited=False, more_s=0.1, policy=AUTO)
    cut = next(entry for entry in found if entry.capacity_reason.code == "capped-by-delay")
    assert 0.5 * RATE < cut.capacity_bits_per_s < RATE


@pytest.mark.parametrize(
    ("application_limited", "more_s", "lost", "policy"),
    [(True, 0.1, 0.0, AUTO), (False, 0.0, 0.1, AUTO), (False, 0.1, 0.0, NAMED)],
    ids=["nothing more to send", "loss alone", "the operator names the rate"],
)
def test_far_below_our_rate_all_else_is_cross_traffics(
    application_limited: bool, more_s: float, lost: float, policy: Policy
) -> None:
    found = decided(application_limited=application_limited, more_s=more_s, lost=lost, policy=policy)
    assert {entry.capacity_bits_per_s for entry in found} == {970_000_000}


@pytest.mark.parametrize(
    ("by", "peers", "found"),
    [((KERNEL,), 1, False), ((KERNEL, KERNEL), 1, False), ((KERNEL, ("report", 7)), 1, False),
     ((("report", 7), ("report", 7)), 2, False), ((("report", 7), ("report", 8)), 2, False),
     ((KERNEL, ("report", 7)), 2, True), ((KERNEL, KERNEL), 2, True)],
    ids=["one", "two connections to one", "one, and a report of it", "reports", "reports of two users",
         "one, and a report of another", "two"],
)  # fmt: skip
def test_far_below_the_cards_rate_two_destinations_have_to_see_a_queue_and_one_by_our_own_measurement(
    by: Sequence[tuple[str, int | None]], peers: int, found: bool
) -> None:
    """One upload to a slow far end is no reason to hold the host: its queue is there."""
    seen = decided(application_limited=False, more_s=0.1, policy=AUTO, by=by, peers=peers)
    assert ("capped-by-delay" in {entry.capacity_reason.code for entry in seen}) is found
    assert found or {entry.capacity_bits_per_s for entry in seen} == {970_000_000}


@pytest.mark.parametrize(("drops", "reason"), [("", "capped-by-loss"), ("other", "capped-by-loss"), ("storage", None)])
def test_drops_here_void_the_losses_of_their_own_class_alone(drops: str, reason: str | None) -> None:
    codes = {
        entry.capacity_reason.code for entry in decided(application_limited=False, more_s=0.0, lost=0.1, drops=drops)
    }
    assert codes - {"link-rate", "signals-missing", "draining", "probing"} == ({reason} if reason else set())
