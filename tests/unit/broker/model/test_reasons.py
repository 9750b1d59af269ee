"""The table of reasons: every sentence can be said, and every call in the broker brings the values that it needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.model.reasons import Because

BROKER = Path(__file__).parents[4] / "broker"


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Where the broker gives a reason: the line, the member, and the names of its values."""
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("Because."):
                where = f"{path.relative_to(BROKER)}:{node.lineno}"
                assert not node.args, f"{where}: values go by name"
                yield where, ast.unparse(node.func).removeprefix("Because."), {str(word.arg) for word in node.keywords}


def test_every_call_brings_the_values_of_its_sentence_and_no_other() -> None:
    found = list(calls())
    wrong = [where for where, member, given in found if given != set(Because[member].values)]
    assert not wrong
    assert {member for _, member, _ in found} == set(Because.__members__), "a reason that nobody gives"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            Because.CAPPED_BY_DELAY(rate_bits_per_s=20_000_000, excess_s=0.045, baseline_s=0.02),
            "20 Mbit/s measured: 45 ms of queue elsewhere over a round trip of 20 ms",
        ),
        (
            Because.CAPPED_BY_LOSS(rate_bits_per_s=20_000_000, lost_fraction=0.0213),
            "20 Mbit/s measured: 2.1 % were lost on the path",
        ),
        (
            Because.YIELDS_TO_BURST(job="llm", step=3, burst_bytes=4 * 2**20, remaining_s=0.214),
            "makes room for step 3 of job llm: 4 MiB announced, at most 0.21 s more",
        ),
    ],
)
def test_a_sentence_shows_its_values_in_their_units(reason: object, text: str) -> None:
    assert getattr(reason, "text", None) == text


def test_a_value_may_hold_braces() -> None:
    assert Because.HOLD_REFUSED(why="{x} is refused").text == "{x} is refused"


def test_a_call_without_a_value_of_its_sentence_fails() -> None:
    with pytest.raises(KeyError):
        Because.IDLE()
