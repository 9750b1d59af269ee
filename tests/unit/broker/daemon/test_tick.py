"""When TCP is looked at before a decision, when what it said last will do, and what goes on without a decision."""

from __future__ import annotations

import pytest

from broker.daemon.tick import looks_first, looks_soon
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

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
