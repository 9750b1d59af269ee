"""The table of transitions, and what holds of the estimate in every phase, whatever is measured."""

from __future__ import annotations

import random

import pytest

from broker.law.capacity import estimator
from broker.law.capacity.decrease import least
from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.estimator import TIMED, TRANSITIONS, Event
from broker.law.capacity.evidence import INBOUND, OUTBOUND, Carried, Direction, Evidence, Queue, Room
from broker.law.capacity.state import CapacityState, Cause, Phase

BASE, TICK_S = 100_000_000, 0.1
Met = set[tuple[Phase, Phase]]


def random_evidence(chance: random.Random, stretch: str) -> Evidence:
    measured = DeliveryRate(chance.uniform(1e5, 3e8), 0.4, chance.uniform(0, 0.3), chance.uniform(0, 0.3))
    cause = chance.choice((None, *Cause)) if stretch == "queue" else None
    return Evidence(
        elapsed_s=TICK_S, limiting=chance.random() < 0.8, reported=stretch != "silent", used=True,
        queue=Queue(cause, chance.randint(0, 3), chance.uniform(0, 0.3), 0.01),
        carried=Carried(
            measured=measured if chance.random() < 0.5 else None, since_cut=chance.choice((None, measured)),
            drained=chance.random() < 0.2, assumed_bits_per_s=chance.uniform(0, BASE), reported=chance.random() < 0.5,
            least_bits_per_s=chance.choice((0.0, 2e8)) * chance.random() if stretch == "clear" else 0.0,
        ),
        room=Room(
            clear=stretch != "silent" and chance.random() < 0.7, disputed=chance.random() < 0.1, settled=True,
            wait_s=chance.choice((None, 0.001)), most_bits_per_s=1.5 * BASE, proven=chance.random() < 0.1,
        ),
    )  # fmt: skip


def followed(direction: Direction, *, seeds: int, ticks: int) -> Met:
    """Follow random evidence in stretches of a kind, and check each tick; the steps from phase to phase."""
    met: Met = set()
    for seed in range(seeds):
        chance = random.Random(seed)
        state, stretch = estimator.of_base(None, BASE, now_s=0.0), "queue"
        for tick in range(1, ticks):
            if chance.random() < 0.01:
                stretch = chance.choice(("queue", "clear", "silent"))
            before = state
            evidence = random_evidence(chance, stretch)
            state = estimator.estimate(state, evidence, direction, now_s=tick * TICK_S)
            met.add((before.phase, state.phase))
            assert least(state, direction) <= state.rate_bits_per_s <= state.base_bits_per_s
            if before.phase is Phase.DRAINING is state.phase:
                assert state.cut is not None
                assert before.cut is not None
                assert state.cut.at_s == before.cut.at_s, "no second cut while a queue drains"
    return met


@pytest.mark.parametrize("direction", [OUTBOUND, INBOUND], ids=["outbound", "inbound"])
def test_whatever_is_measured_the_rate_stays_between_its_bounds_and_phases_follow_the_table(
    direction: Direction,
) -> None:
    met = followed(direction, seeds=20, ticks=4000)
    single = {(phase, to) for phase, row in TRANSITIONS.items() for to in row.values()}
    timed = {(phase, TRANSITIONS[phase][event]) for phase, event in TIMED.items()}
    allowed = {(phase, phase) for phase in Phase} | single
    allowed |= {(phase, then) for phase, to in timed for first, then in single if first is to}
    assert met <= allowed
    assert {to for _, to in met} == set(Phase)


def test_every_event_has_an_effect_or_a_time_and_leads_somewhere() -> None:
    named = {event for row in TRANSITIONS.values() for event in row}
    assert named == set(Event)
    assert set(estimator.EFFECTS) | set(TIMED.values()) == set(Event)
    assert set(TRANSITIONS) == set(Phase)


def test_a_second_cut_waits_until_the_first_has_drained_and_a_third_of_a_second_more() -> None:
    queue = Queue(Cause.DELAY, votes=2, excess_s=0.1)
    carried = Carried(assumed_bits_per_s=5e7)
    evidence = Evidence(TICK_S, limiting=True, reported=True, used=True, queue=queue, carried=carried, room=Room())
    state: CapacityState = estimator.of_base(None, BASE, now_s=0.0)
    cuts_s = []
    for tick in range(1, 20):
        after = estimator.estimate(state, evidence, OUTBOUND, now_s=tick * TICK_S)
        if after.rate_bits_per_s < state.rate_bits_per_s:
            cuts_s.append(tick * TICK_S)
        state = after
    assert cuts_s[1] - cuts_s[0] >= 0.2 + 0.3
