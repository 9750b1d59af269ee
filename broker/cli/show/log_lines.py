"""An event of the broker's log as a person reads it: when, how grave, what it means, and its figures in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from broker.cli.show.screen import LIMITED_BY, NOTE_LENGTH_MAX, Note, name_of
from hive_qos.text import printable

STYLES: Mapping[str, str] = {"error": "bold red", "warning": "yellow"}
"""A word says the same: no event is told by its colour alone."""
SENTENCES = ("text", "reason", "error", "note")
"""Keys whose values are sentences: they stand last, without a name."""
NAMES: Mapping[str, str] = {"traffic_class": "class", "uid": "user", "silence_s": "seconds of silence"}
"""What a key is called, where an underscore for a space is not enough."""


def event_lines(one: Mapping[str, Any]) -> RenderableType:
    """Two lines as a rule: time, event and meaning; then its keys."""
    event, level = name_of(one.get("event")), str(one.get("level"))
    at_s, given = one.get("at_s"), one.get("keys")
    at = time.strftime("%b %d %H:%M:%S", time.localtime(at_s)) if isinstance(at_s, (int, float)) else "?"
    keys = dict(given) if isinstance(given, Mapping) else {}
    grave = f"{level}: " if level in STYLES else ""
    first = Text.assemble(at + " ", (f"{grave}{event}", STYLES.get(level, "bold")))
    text = _in_words(event, keys) or _meaning(one, keys)
    return Group(first, Note(text)) if text else first


def _in_words(event: str, keys: Mapping[str, Any]) -> str:
    """The decisions, which are told most often, as sentences; "" for all others."""
    if event == "limit-changed":
        who = f"job {_value(keys, 'job')}" if keys.get("job") else f"class {_value(keys, 'traffic_class')}"
        where = _value(keys, "interface")
        if keys.get("limited_by") == "idle":
            return f"{who} at {where} sends nothing any more"
        limit = str(keys.get("limited_by"))
        text = f": {_value(keys, 'text')}" if keys.get("text") else ""
        return f"{who} at {where} is limited by {LIMITED_BY.get(limit, printable(limit))}{text}"
    if event == "capacity-changed":
        where, direction, before, rate, reason = (
            _value(keys, key) for key in ("interface", "direction", "before", "rate", "reason")
        )
        return f"{where} {direction} at most {rate}, {before} before: {reason}"
    if event == "alarm-raised":
        return f"{_value(keys, 'subject')}: {_value(keys, 'text')} [{_value(keys, 'code')}]"
    if event == "alarm-cleared":
        return f"{_value(keys, 'subject')}: over [{_value(keys, 'code')}]"
    return ""


def _meaning(one: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    names = {key: NAMES.get(key, name_of(key).replace("_", " ")) for key in keys if key not in SENTENCES}
    named = [f"{name} {_value(keys, key)}" for key, name in names.items()]
    said = [_value(keys, key) for key in SENTENCES if key in keys]
    about = f" ({', '.join(named)})" if named else ""
    meaning = printable(str(one.get("meaning", "")), length_max=NOTE_LENGTH_MAX).rstrip(".")
    return f"{meaning}{about}" + (f": {'; '.join(said)}" if said else "")


def _value(keys: Mapping[str, Any], key: str) -> str:
    return printable(str(keys.get(key, "?")), length_max=NOTE_LENGTH_MAX)
