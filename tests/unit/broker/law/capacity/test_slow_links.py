"""Links on which a few packets take as long as what counts as a queue elsewhere, with the law at both ends, untold.

Training hands the kernel six packets, and more when they have gone, as our engines do: what it asks a peer's clock
waits for that, and no counter of ours shows it.
"""

from __future__ import annotations

import pytest

from broker.law.capacity import delivery_rate


def test_what_a_slow_link_takes_for_few_packets_is_no_queue() -> None:
    assert delivery_rate.threshold_s(0.03, 100e6) == 0.03
    assert delivery_rate.threshold_s(0.012, 4e6) == pytest.approx(delivery_rate.UNSEEN_BYTES * 8 / 4e6)


def test_on_a_very_slow_link_two_packets_are_the_most_that_is_left_unseen() -> None:
    assert delivery_rate.threshold_s(0.03, 0.5e6) == delivery_rate.UNSEEN_S_MAX
    assert delivery_rate.threshold_s(0.03, 64e3) == pytest.approx(2 * delivery_rate.PACKET_BYTES * 8 / 64e3)
