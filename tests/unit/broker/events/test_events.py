"""The table of log events is what the code logs: filters of operators rest on names, levels and keys."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from broker.events.catalogue import EVENTS

BROKER = Path(__file__).parents[4] / "broker"
LEVELS = {"debug", "info", "warning", "error"}


def calls() -> list[tuple[str, str, frozenset[str]]]:
    """Event, level and keys of every log call. `broker/client` logs sentences through Python's own logging."""
    found = []
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            logger = ast.unparse(node.func.value)
            if node.func.attr in LEVELS and logger.rpartition(".")[2] in ("log", "_log") and logger != "_log":
                assert len(node.args) == 1, f"{path}:{node.lineno}: an event and its keys, nothing else"
                event = ast.literal_eval(node.args[0])
                keys = frozenset(str(word.arg) for word in node.keywords) - {"exc_info"}
                found.append((event, node.func.attr, keys))
    return found


def test_every_log_call_is_in_the_table_with_its_level_and_its_keys() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for event, level, keys in calls():
        assert event in EVENTS, f"{event} has no line in broker/events/catalogue.py"
        assert level == EVENTS[event].level, event
        found[event] |= keys
    assert {event: set(about.keys) for event, about in EVENTS.items()} == found


def test_names_of_events_are_words_with_hyphens() -> None:
    assert [name for name in EVENTS if not re.fullmatch(r"[a-z]+(-[a-z]+)+", name)] == []
