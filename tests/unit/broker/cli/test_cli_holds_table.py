"""Holds, leases and other brokers as an operator reads them, whatever names come from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from broker.cli.show.holds_table import SHOWN_MAX
from broker.cli.show.status_table import render

HOLD = {
    "address": "10.0.0.3", "class": "storage", "rate_bits_per_s": 1_900_000, "reason": {"text": "step 3 comes in"},
    "granted": True, "granted_bits_per_s": 2_000_000, "verdict": {"text": "the floor holds"},
}  # fmt: skip


def shown(document: Mapping[str, Any]) -> str:
    console = Console(width=100, record=True)
    with console.capture() as captured:
        console.print(render(document))
    return captured.get()


def test_what_was_asked_and_what_was_said_stand_side_by_side() -> None:
    text = shown(
        {"holds": [HOLD], "peers": [{"address": "10.0.0.3", "peer": "c", "state": "connected", "rtt_s": 0.004}]}
    )
    for part in ("10.0.0.3", "1.9 Mbit/s", "2 Mbit/s", "the floor holds", "connected", "4.0 ms"):
        assert part in text


def test_a_refusal_is_called_one_and_no_answer_is_none() -> None:
    assert "refused" in shown({"leases": [{**HOLD, "peer": "a", "granted": False}]})
    unanswered = {key: value for key, value in HOLD.items() if key not in ("granted", "granted_bits_per_s", "verdict")}
    assert "step 3 comes in" in shown({"holds": [unanswered]})


def test_names_from_outside_are_harmless_and_many_are_counted() -> None:
    text = shown({"leases": [{**HOLD, "peer": "\x1b[31mevil"}] * (SHOWN_MAX + 3), "peers": "nonsense"})
    assert "\x1b" not in text
    assert "and 3 more" in text


def test_the_way_in_says_why_though_nothing_is_shaped_here() -> None:
    storage = {"name": "storage", "reason": {"text": "step 3 comes in"}}
    entry = {"name": "eth0", "direction": "ingress", "shaped": False, "asked": True, "classes": [storage]}
    text = shown({"interfaces": [entry]})
    assert "receives" in text
    assert "step 3 comes in" in text
    assert "not shaped" not in text
