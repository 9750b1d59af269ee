"""Links on which a few packets take as long as what counts as a queue elsewhere, with the law at both ends, untold.

Training hands the kernel six packets, and more when they have gone, as our engines do: what it asks a peer's clock
waits for that, and no counter of ours shows it.
"""

from __future__ import annotations

import pytest

from broker.law.capacity import thresholds


def test_what_a_slow_link_takes_for_few_packets_is_no_queue() -> None:
    assert thresholds.at_least(0.03, 100e6) == 0.03
    assert thresholds.at_least(0.012, 4e6) == pytest.approx(thresholds.UNSEEN_BYTES * 8 / 4e6)


def test_on_a_very_slow_link_two_packets_are_the_most_that_is_left_unseen() -> None:
    assert thresholds.at_least(0.03, 0.5e6) == thresholds.UNSEEN_S_MAX
    assert thresholds.at_least(0.03, 64e3) == pytest.approx(2 * thresholds.PACKET_BYTES * 8 / 64e3)
