"""The decision in a loop with the simulated world."""

from __future__ import annotations

from fluid_link import World

from broker.law.decide import decide
from broker.law.recording import header_line, tick_line
from broker.law.state import State
from broker.policy.types import Policy


class Controlled:
    """The decision in a loop with a world; keeps the recording."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.state = State()
        self.lines = [header_line(policy=policy, state=self.state)]

    def __call__(self, world: World) -> None:
        measurements = world.measurements()
        decision = decide(now_s=world.now_s, state=self.state, measurements=measurements, policy=self.policy)
        self.lines.append(tick_line(now_s=world.now_s, measurements=measurements, decision=decision))
        self.state = decision.state
        world.apply(decision)
