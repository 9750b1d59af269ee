"""What waits in an IFB of ours, and what is left of a round trip when that is taken off."""

from __future__ import annotations

import pytest

from broker.law.capacity import inbound_delay
from broker.law.capacity.inbound_delay import OutboundLoad
from broker.law.capacity.state import InboundSignalState
from broker.law.holds import ifb_delay
from broker.law.inbound_state import IfbDelayState
from broker.model.values import ClassSample, FlowSample, SenderSample

OUT = OutboundLoad(100_000_000)


def followed(*readings: tuple[float, int, int]) -> tuple[IfbDelayState, ...]:
    """(when, sent bytes, waiting bytes) of storage."""
    states: tuple[IfbDelayState, ...] = ()
    for now_s, sent, waiting in readings:
        states = ifb_delay.follow(states, (ClassSample("storage", sent, waiting),), now_s=now_s)
    return states


def test_what_waits_takes_as_long_as_the_class_needs_for_it() -> None:
    states = followed((0.0, 0, 0), (0.1, 250_000, 0), (0.2, 500_000, 50_000))
    assert ifb_delay.waits_s(states, now_s=0.2) == {"storage": pytest.approx(0.02)}  # 50 kB at 2.5 MB/s


def test_the_longest_wait_of_a_moment_ago_counts_and_none_of_long_ago() -> None:
    states = followed((0.0, 0, 0), (0.1, 250_000, 50_000), (0.2, 500_000, 0), (0.3, 750_000, 0))
    assert ifb_delay.wait_s(states, "storage") == 0.0
    assert ifb_delay.waits_s(states, now_s=0.3)["storage"] == pytest.approx(0.02)
    assert ifb_delay.waits_s(states, now_s=0.45)["storage"] == 0.0


def test_counters_that_begin_anew_and_an_ifb_that_goes_leave_nothing() -> None:
    states = followed((0.0, 0, 0), (0.1, 250_000, 50_000), (0.2, 10, 0))
    assert ifb_delay.waits_s(states, now_s=0.2) == {"storage": 0.0}
    assert ifb_delay.follow(states, (), now_s=0.3) == ()


def test_one_reading_that_fails_leaves_what_is_known_and_many_do_not() -> None:
    states = followed((0.0, 0, 0), (0.1, 250_000, 0), (0.2, 500_000, 50_000))
    kept = ifb_delay.follow(states, None, now_s=0.3)
    assert ifb_delay.waits_s(kept, now_s=0.3) == {"storage": pytest.approx(0.02)}
    (after,) = ifb_delay.follow(kept, (ClassSample("storage", 1_000_000, 0),), now_s=0.4)
    assert after.rate_bits_per_s == pytest.approx(20e6), "since the reading before the one that failed"
    assert ifb_delay.follow(states, None, now_s=0.6) == ()


@pytest.mark.parametrize(("here_s", "seen_s"), [(0.0, 0.1), (0.06, 0.04), (0.2, None)])
def test_what_waits_here_is_no_networks_queue(here_s: float, seen_s: float | None) -> None:
    """Of TCP and of the transport's clocks alike; where it is too long to be known well, they say nothing."""
    state = InboundSignalState()
    for now_s, waits_s in ((1.0, 0.0), (1.1, 0.1)):
        state = inbound_delay.observe(
            state,
            flows=(FlowSample("s/b", "b", "compute", "report", 0.0, inbound_s=7.0 + waits_s, inbound_age_s=0.0),),
            senders=(SenderSample("c", "storage", 0, 0.0, receive_rtt_s=0.005 + waits_s),),
            held=frozenset(),
            out=OUT,
            now_s=now_s,
            here={"storage": here_s if waits_s else 0.0, "compute": here_s if waits_s else 0.0},
        )
    found = {
        sender_delay.sender: series[-1][1]
        for sender_delay in state.sender_delays
        for series in sender_delay.both
        if series
    }
    assert found == ({} if seen_s is None else {"b": pytest.approx(seen_s), "c": pytest.approx(seen_s)})
