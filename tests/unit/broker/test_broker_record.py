"""A recording of a thousand ticks gives the same bytes again, and a changed one is found out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from control_loop import Controlled
from fluid_link import World, quic, tcp

from broker.decide import decide
from broker.model import Measurements, Policy, State, from_json
from broker.record import replay


@pytest.fixture
def recording(policy: Policy) -> list[str]:
    law = Controlled(policy)
    world = World([quic(), tcp(), tcp(port=874)], lambda at_s: 40e6 if at_s < 30 else 20e6, jitter_s=0.003)
    world.run(100.0, law)
    return law.lines


def test_a_thousand_ticks_replay_to_the_same_bytes(recording: list[str]) -> None:
    found = replay(recording)
    assert found.first_difference is None
    assert found.ticks >= 999


def test_a_changed_measurement_is_found_at_its_line(recording: list[str]) -> None:
    tick = json.loads(recording[500])
    tick["allocation"]["interfaces"][0]["classes"][2]["rate_bits_per_s"] += 1
    recording[500] = json.dumps(tick, separators=(",", ":"), ensure_ascii=False)
    assert replay(recording).first_difference == 501


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
    policy = from_json(Policy, header["policy"])
    ticks = [json.loads(line) for line in recording[1:400]]
    inputs = [(tick["now_s"], from_json(Measurements, tick["measurements"])) for tick in ticks]
    state, started = State(), time.process_time()
    for now_s, measurements in inputs:
        state = decide(now_s=now_s, state=state, measurements=measurements, policy=policy).state
    assert (time.process_time() - started) / len(inputs) < 0.003


def test_the_recording_says_why_in_words(recording: list[str], run: Callable[[World, float], World]) -> None:
    texts = " ".join(recording)
    assert "of queue elsewhere over a round trip of" in texts
    assert "makes room for step" in texts
