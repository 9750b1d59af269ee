"""Every alarm that the broker can raise has advice, and no advice is for an alarm that there is not."""

from __future__ import annotations

import ast
from pathlib import Path

from broker.cli.alarm_advice import ALARM_ADVICE

BROKER = Path(__file__).parents[4] / "broker"
RAISERS = {"Alarm": 0, "_hold_former": 0, "_lost": 1}
"""Functions that make an alarm, and which of their arguments is its code."""


def codes() -> set[str]:
    found = set()
    for path in BROKER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name not in RAISERS:
                continue
            given = {word.arg: word.value for word in node.keywords}
            code = given.get("code", node.args[RAISERS[name] : RAISERS[name] + 1])
            for expression in code if isinstance(code, list) else [code]:
                found |= {one.value for one in ast.walk(expression) if isinstance(one, ast.Constant)}
    return {code for code in found if isinstance(code, str) and "-" in code and " " not in code}


def test_every_alarm_has_advice() -> None:
    found = codes()
    assert len(found) > 25
    assert found == ALARM_ADVICE.keys()


def test_no_advice_sends_people_to_the_command_that_shows_the_alarm() -> None:
    assert [one for one in ALARM_ADVICE.values() if "status" in one.action or "doctor" in one.action] == []
