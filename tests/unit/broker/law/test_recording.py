"""A recording of a thousand ticks gives the same bytes again, and a changed one is found out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec
import pytest
from control_loop import Controlled
from fluid_link import World, quic, tcp
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.law.decide import decide
from broker.law.recording import Replay, header_line, replay, tick_line
from broker.law.state import State
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements, Need
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy


@pytest.fixture(scope="module")
def recorded(policy: Policy) -> tuple[str, ...]:
    law = Controlled(policy)
    world = World([quic(), tcp(), tcp(port=874)], lambda at_s: 40e6 if at_s < 30 else 20e6, jitter_s=0.003)
    world.run(100.0, law)
    return tuple(law.lines)


@pytest.fixture
def recording(recorded: tuple[str, ...]) -> list[str]:
    return list(recorded)


def test_a_thousand_ticks_replay_to_the_same_bytes(recording: list[str]) -> None:
    found = replay(recording)
    assert found.first_difference is None
    assert found.ticks >= 999


def test_a_changed_measurement_is_found_at_its_line(recording: list[str]) -> None:
    tick = json.loads(recording[500])
    tick["allocation"]["interfaces"][0]["classes"][2]["rate_bits_per_s"] += 1
    recording[500] = json.dumps(tick, separators=(",", ":"), ensure_ascii=False)
    assert replay(recording).first_difference == 501


def test_another_reason_is_a_difference(recording: list[str]) -> None:
    tick = json.loads(recording[1])
    tick["allocation"]["interfaces"][0]["capacity_reason"]["code"] = "another"
    assert replay([recording[0], json.dumps(tick)]) == Replay(ticks=1, first_difference=2)


def test_a_file_that_is_no_recording_is_refused_with_its_line(recording: list[str]) -> None:
    for lines, words in (
        (["hello"], "line 1"),
        (["[" * 100_000], "line 1"),
        ([], "no decision"),
        (recording[:1], "no decision"),
        (recording[1:3], "does not start"),
        ([recording[0], '{"now_s": "x"}'], "line 2"),
        (['{"record": 99, "policy": {"interfaces": [], "classes": []}, "state": {}}'], "version 99"),
    ):
        with pytest.raises(ValueError, match=words):
            replay(lines)


def test_a_tick_costs_less_than_three_milliseconds_of_processor_time(recording: list[str]) -> None:
    """The aim is 1 ms for a few classes and ten flows; three here, because test machines are shared."""
    header = json.loads(recording[0])
    policy = msgspec.convert(header["policy"], Policy)
    ticks = [json.loads(line) for line in recording[1:400]]
    inputs = [(tick["now_s"], msgspec.convert(tick["measurements"], Measurements)) for tick in ticks]
    state, started = State(), time.process_time()
    for now_s, measurements in inputs:
        state = decide(now_s=now_s, state=state, measurements=measurements, policy=policy).state
    assert (time.process_time() - started) / len(inputs) < 0.003


def test_the_recording_says_why_in_words(recording: list[str], run: Callable[[World, float], World]) -> None:
    texts = " ".join(recording)
    assert "of queue elsewhere over a round trip of" in texts
    assert "makes room for step" in texts


announced = st.builds(
    Burst,
    job=st.sampled_from(["J", "K", "\x1b[2J", "ä" * 60]),
    step=st.integers(0, 3),
    announced_bytes=st.integers(0, 2**50),
    age_s=st.floats(0, 60),
    remaining_s=st.floats(-2, 3600),
    next_s=st.none() | st.floats(0, 3600),
    uid=st.integers(0, 2),
    by_destination=st.lists(st.tuples(st.sampled_from(["10.0.0.2", "fd00::2"]), st.integers(0, 2**50))).map(tuple),
)
declared = st.builds(
    Need,
    session=st.sampled_from(["s-1", "s-2"]),
    uid=st.integers(0, 2),
    backlog_bytes=st.integers(0, 2**50),
    age_s=st.floats(0, 60),
    remaining_s=st.none() | st.floats(-60, 3600),
    replicas_at_risk=st.integers(0, 2**53),
)
ticks = st.lists(
    st.tuples(
        st.floats(0.005, 2.0),
        st.integers(0, 10**8),
        st.lists(announced, max_size=4, unique_by=lambda one: (one.uid, one.job, one.step)).map(tuple),
        st.lists(declared, max_size=3, unique_by=lambda one: one.session).map(tuple),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(ticks)
def test_whatever_is_announced_and_declared_replays_to_the_same_bytes(
    reported: list[tuple[float, int, tuple[Burst, ...], tuple[Need, ...]]],
) -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')
    state, now_s, sent = State(), 0.0, 0
    lines = [header_line(policy=policy, state=state)]
    for elapsed_s, more, bursts, needs in [*reported, (0.1, 0, (), ())]:
        now_s, sent = now_s + elapsed_s, sent + more
        classes = tuple(ClassSample(name, sent) for name in CLASS_NAMES)
        measured = Measurements((InterfaceSample("a", None, 0.0, classes, bursts=bursts, needs=needs),))
        decision = decide(now_s=now_s, state=state, measurements=measured, policy=policy)
        lines.append(tick_line(now_s=now_s, measurements=measured, decision=decision))
        state = decision.state
    assert replay(lines).first_difference is None
    middle = [header_line(policy=policy, state=state), lines[-1]]
    assert replay(middle).ticks == 1, "a header carries all that is remembered"
