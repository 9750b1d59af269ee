"""What an interface's line carries as far as operator and driver say: what its ceilings are opened to."""

from __future__ import annotations

import pytest

from broker.law.capacity.evidence import FALLBACK_BITS_PER_S
from broker.law.capacity.outbound import line_rate
from broker.policy.types import InterfacePolicy

MBIT = 1_000_000


@pytest.mark.parametrize(
    ("configured", "driver", "line"),
    [
        (40 * MBIT, 1000 * MBIT, 40 * MBIT),
        (None, 100 * MBIT, 100 * MBIT),
        (None, None, FALLBACK_BITS_PER_S),
        (None, 10_000, FALLBACK_BITS_PER_S),
    ],
    ids=["configured", "driver", "nobody-knows", "no-speed-at-all"],
)
def test_the_operator_knows_best_then_the_driver(configured: int | None, driver: int | None, line: int) -> None:
    policy = InterfacePolicy(name="eth0", egress_bits_per_s=configured)
    assert line_rate(policy, link_bits_per_s=driver) == line
