"""What the tests of the control law share: a policy, and a loop that closes it over the simulated host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control_loop import Controlled
from fluid_link import World

from broker.policy.toml import load
from broker.policy.types import Policy


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')


@pytest.fixture
def run(policy: Policy) -> Callable[..., World]:
    def go(world: World, until_s: float) -> World:
        law = Controlled(policy)
        law(world)  # the shaper is there before the traffic
        world.run(until_s, law)
        return world

    return go
