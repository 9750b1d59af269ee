"""What is lost on the way counts, but not after a cut what was lost before it, whenever that is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.law.capacity import signals
from broker.law.capacity.state import SignalState
from broker.model.values import ClassSample, FlowSample
from broker.policy.types import CLASS_NAMES

TICK_S, DROP_S, CUT_S, DRAINED_S = 0.1, 0.5, 3.0, 3.4
MOST = 0.05


def read_ticks(
    packets: Sequence[tuple[int, int]], *, every: int = 1, from_s: float = 0.0, dropped: int = 0, by: str = "storage"
) -> list[signals.Signals]:
    """What is said, tick by tick, of a connection of storage that sent and lost so many packets in each, is looked at
    in every so many of them, and known from a time on; class `by` drops so many pieces here at `DROP_S`, a cut comes at
    `CUT_S`, its drain ends at `DRAINED_S`."""
    state, found, sent, lost = SignalState(), [], 0, 0
    seen, seen_s = (0, 0), 0.0
    for number, (more_sent, more_lost) in enumerate(packets, start=1):
        now_s = number * TICK_S
        sent, lost = sent + more_sent, lost + more_lost
        if number % every == 0:
            seen, seen_s = (sent, lost), now_s
        flow = FlowSample(
            key="tcp/873/10.0.0.3", peer="10.0.0.3", traffic_class="storage", source="tcp-info", age_s=now_s - seen_s,
            rtt_s=0.01, rtt_s_min=0.01, delivered_bytes=1_448 * (seen[0] - seen[1]), sent_packets=seen[0],
            lost_packets=seen[1],
        )  # fmt: skip
        flows = [flow] if seen_s > from_s else []
        state = signals.observe(
            state, now_s=now_s, flows=flows, classes=[ClassSample(name, 0, 0) for name in CLASS_NAMES],
            sent_bits=[12_000.0 * more_sent] * len(CLASS_NAMES), received_bits=0.0,
            dropped_packets=[dropped if name == by and abs(now_s - DROP_S) < 1e-9 else 0 for name in CLASS_NAMES],
            elapsed_s=TICK_S, loaded=True, rate_bits_per_s=10_000_000,
        )  # fmt: skip
        if abs(now_s - CUT_S) < 1e-9:
            state = signals.forget(state, before_s=DRAINED_S)
        found.append(signals.read(state, now_s=now_s))
    return found


def lost_fractions(packets: Sequence[tuple[int, int]], *, every: int = 1, from_s: float = 0.0) -> list[float]:
    """What of it counts as lost after the cut."""
    return [entry.lost_since_fraction for entry in read_ticks(packets, every=every, from_s=from_s)]


def test_losses_count_until_a_cut_and_those_that_are_found_in_a_second_and_a_half_after_its_drain_do_not() -> None:
    found = lost_fractions([(50, 10)] * 48 + [(50, 0)] * 20)
    assert found[28] == pytest.approx(0.2)
    assert max(found[30:]) == 0.0


def test_nothing_counts_as_lost_on_the_path_within_two_seconds_of_a_drop_of_our_own() -> None:
    """One piece of 44 segments was dropped, so that subtracting drops leaves 43 losses."""
    packets = [(50, 0)] * 4 + [(50, 44)] + [(50, 10)] * 24
    found = [entry.lost_fraction for entry in read_ticks(packets, dropped=1)]
    assert max(found[:24]) == 0
    assert min(found[25:]) > 0
    assert min(entry.lost_fraction for entry in read_ticks(packets)[4:]) > 0


def test_what_another_class_drops_here_hides_no_loss_on_the_path() -> None:
    """A class below its own ceiling drops all the time, by design."""
    packets = [(50, 10)] * 29
    assert read_ticks(packets, dropped=1, by="other") == read_ticks(packets)


def test_losses_that_are_repeated_late_because_a_burst_goes_first_do_not_count() -> None:
    """As measured: one packet a tick while training sends for a second, then 34 that were all lost before the cut."""
    found = lost_fractions([(50, 0)] * 34 + [(1, 1)] * 10 + [(34, 34), (65, 12)] + [(50, 0)] * 10)
    assert max(found) <= MOST


def test_losses_of_what_was_sent_after_a_cut_count_then() -> None:
    found = lost_fractions([(50, 10)] * 60)
    assert max(found[30:48]) == 0.0
    assert found[49] == pytest.approx(0.2)


def test_losses_of_before_a_cut_forbid_raises_all_the_same() -> None:
    found = read_ticks([(50, 10)] * 60)
    assert min(entry.lost_fraction for entry in found[35:]) == pytest.approx(0.2)


def test_a_connection_that_is_looked_at_once_a_second_counts_from_its_second_look_on() -> None:
    found = lost_fractions([(50, 10)] * 60, every=10)
    assert max(found[34:49]) == 0.0
    assert found[49] == pytest.approx(0.2)


def test_a_connection_that_is_followed_only_since_a_cut_is_no_exception() -> None:
    found = lost_fractions([(50, 0)] * 34 + [(1, 1)] * 10 + [(34, 34), (65, 12)] + [(50, 0)] * 10, from_s=3.5)
    assert max(found) <= MOST
