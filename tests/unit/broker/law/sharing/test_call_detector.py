"""What is taken for a call: speech and pictures are, uploads, downloads, pages, keys and housekeeping are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from seeds import assert_most, over_seeds

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.sharing.call_detector import ABSENT_S, SLOT_S, SLOTS, follow, looks_like_a_call
from broker.law.state import PresenceState, State
from broker.model.values import ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

Traffic = Callable[[float, random.Random], tuple[float, float]]
"""Packets a second at a time, and their average size."""


def watch(traffic: Traffic, *, for_s: float, state: PresenceState | None = None, seed: int = 0) -> PresenceState:
    """Feed what a class sends, tick by tick, from where a state stands."""
    state, chance = state or PresenceState(), random.Random(seed)
    at_s = state.counted_s or 0.0
    packets, size = float(state.sent_packets), float(state.sent_bytes)
    for _ in range(int(for_s * 10)):
        at_s += 0.1
        rate, each = traffic(at_s, chance)
        packets, size = packets + rate / 10, size + rate * each / 10
        sample = ClassSample("other", int(size), sent_packets=int(packets))
        state = follow(state, sample, read_s=at_s, now_s=at_s)
    return state


def speech(_: float, chance: random.Random) -> tuple[float, float]:
    return chance.uniform(45, 55), chance.uniform(130, 220)


def video(_: float, chance: random.Random) -> tuple[float, float]:
    return chance.uniform(150, 400), chance.uniform(700, 1200)


def call_over_bad_wifi(at_s: float, chance: random.Random) -> tuple[float, float]:
    return chance.choice([0, 50, 100]), 200


def upload(_: float, chance: random.Random) -> tuple[float, float]:
    return chance.uniform(100, 400), 1514


def download(_: float, chance: random.Random) -> tuple[float, float]:
    return chance.uniform(200, 900), chance.uniform(66, 90)


def pages(at_s: float, chance: random.Random) -> tuple[float, float]:
    return (chance.uniform(50, 400), 250) if at_s % 6 < 1.5 else (chance.uniform(0, 3), 120)


def typing(_: float, chance: random.Random) -> tuple[float, float]:
    return chance.uniform(0, 12), 110


def flood_of_small_packets(_: float, chance: random.Random) -> tuple[float, float]:
    return 5_000, 200


def silence(_: float, chance: random.Random) -> tuple[float, float]:
    return 0.0, 0.0


@pytest.mark.parametrize("traffic", [speech, video, call_over_bad_wifi])
def test_a_call_is_seen_within_eight_seconds(traffic: Traffic) -> None:
    assert_most(over_seeds(50, lambda seed: watch(traffic, for_s=8, seed=seed).present), 1, at_least=True)


@pytest.mark.parametrize("traffic", [upload, download, pages, typing, flood_of_small_packets, silence])
def test_what_is_no_call_is_not_taken_for_one(traffic: Traffic) -> None:
    """In none of 60 seconds."""

    def taken(seed: int) -> bool:
        state, found = PresenceState(), False
        for _ in range(60):
            state = watch(traffic, for_s=1, state=state, seed=seed)
            found = found or state.present
        return found

    assert_most(over_seeds(10, taken), 1, at_most=False)


def test_a_pause_of_less_than_half_a_minute_is_no_end_and_a_longer_one_is() -> None:
    call = watch(speech, for_s=10)
    pause = watch(silence, for_s=ABSENT_S - SLOTS * SLOT_S, state=call)
    assert pause.present
    assert watch(speech, for_s=8, state=pause).present
    assert not watch(silence, for_s=ABSENT_S + 2, state=call).present


def test_one_missing_slot_and_a_late_tick_do_not_hide_a_call() -> None:
    call = [(25, 5_000)] * SLOTS
    assert looks_like_a_call(call)
    assert looks_like_a_call([*call[:4], (0, 0), *call[5:]])
    assert not looks_like_a_call([*call[:4], (0, 0), (0, 0), *call[6:]])
    state = watch(speech, for_s=10)
    packets, size, at_s = state.sent_packets + 60, state.sent_bytes + 12_000, (state.counted_s or 0.0) + 1.2
    late = follow(state, ClassSample("other", size, sent_packets=packets), read_s=at_s, now_s=at_s)
    assert looks_like_a_call(late.slots[1:])


@pytest.mark.parametrize("back", [ClassSample("other", 0, sent_packets=0), ClassSample("other", 10**9)])
def test_counters_that_begin_anew_or_are_missing_are_no_traffic(back: ClassSample) -> None:
    state = watch(speech, for_s=10)
    at_s = (state.counted_s or 0.0) + 0.1
    after = follow(state, back, read_s=at_s, now_s=at_s)
    assert after.present
    again = follow(after, ClassSample("other", 10**9, sent_packets=10**6), read_s=at_s + 0.1, now_s=at_s + 0.1)
    assert max((packets for packets, _ in again.slots[:1]), default=0) <= 10**6
    for tick in range(int(10 * (ABSENT_S + 2))):
        now_s = at_s + tick / 10
        again = follow(again, ClassSample("other", 10**9, sent_packets=10**6), read_s=now_s, now_s=now_s)
    assert not again.present


# --- in the decision ---------------------------------------------------------------------------------------------

TEXT = 'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n'
CAPACITY = 38_800_000


def run(policy_text: str, *, for_s: int, packets_per_s: int = 50, state: State | None = None) -> Decision:
    policy, state = load(policy_text), state or State()
    start = state.ticks
    for tick in range(start, start + for_s * 10):
        sent = tick * packets_per_s // 10
        classes = tuple(
            ClassSample(name, 200 * sent, sent_packets=sent)
            if name == "other"
            else ClassSample(name, *((120_000 * tick, 100_000) if name == "storage" else (0, 0)))  # gets its promise
            for name in CLASS_NAMES
        )
        sample = InterfaceSample("a", counters_age_s=0.0, classes=classes)
        decision = decide(now_s=tick / 10, state=state, measurements=Measurements((sample,)), policy=policy)
        state = decision.state
    return decision


def class_of(decision: Decision, name: str):  # the tests read many fields of it
    return next(one for one in decision.allocation.interfaces[0].classes if one.name == name)


def test_a_call_lowers_storage_raises_other_and_says_so_only_where_policy_wants_it() -> None:
    decision = run(TEXT + "[presence]\nenabled = true\n", for_s=8)
    storage, other = class_of(decision, "storage"), class_of(decision, "other")
    assert (storage.ceil_bits_per_s, storage.reason.code) == (CAPACITY // 2, "held-by-presence")
    assert other.guarantee_bits_per_s == CAPACITY // 4
    presence = decision.allocation.interfaces[0].presence
    assert presence is not None
    assert presence.present
    assert presence.reason.code == "on-a-call"
    assert presence.packet_bytes == 200
    without = run(TEXT, for_s=8)
    assert class_of(without, "storage").ceil_bits_per_s == CAPACITY
    assert without.allocation.interfaces[0].presence is None
    assert without.state.interfaces[0].presence == PresenceState()


def test_a_call_never_gives_storage_more_nor_people_less_than_the_file_does() -> None:
    text = TEXT + (
        "[presence]\nenabled = true\n"
        '[class.storage]\nguarantee = "5 %"\nceiling = "10 Mbit/s"\n[class.other]\nguarantee = "30 %"\n'
    )
    decision = run(text, for_s=8)
    assert class_of(decision, "storage").ceil_bits_per_s == 10_000_000
    assert class_of(decision, "storage").reason.code == "held-by-ceiling"
    assert class_of(decision, "other").guarantee_bits_per_s == int(0.3 * CAPACITY)


def test_the_reason_after_a_call_is_that_it_may_be_a_pause() -> None:
    decision = run(TEXT + "[presence]\nenabled = true\n", for_s=8)
    held = replace(decision.state)
    after = run(TEXT + "[presence]\nenabled = true\n", for_s=9, packets_per_s=0, state=held)
    presence = after.allocation.interfaces[0].presence
    assert presence is not None
    assert presence.reason.code == "call-not-over"
