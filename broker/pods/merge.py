"""A configuration with pods' rules added: read as TOML, and written as TOML with one line for each section."""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections.abc import Mapping

from broker.policy.known_programs import rules_of_class
from broker.policy.toml import MATCH_RULES_MAX, load
from broker.policy.types import MatchRule
from hive_qos.errors import HiveError

HEADING = "# Written by `hive-qos pods` from {base} and the pods of this node. Change that file, not this one.\n"


def room_for_rules(base: str) -> tuple[int, dict[MatchRule, str]]:
    """How many rules can be added to a configuration, and which it has, with the class of each."""
    try:
        classes = load(base).classes
    except HiveError:  # the broker says what is wrong, and refuses it with or without pods' rules
        return MATCH_RULES_MAX, {}
    count = sum(len(rules_of_class(entry)) for entry in classes)
    return max(0, MATCH_RULES_MAX - count), {rule: entry.name for entry in classes for rule in entry.match}


def with_rules(base: str, rules: Mapping[str, tuple[MatchRule, ...]], *, name: str) -> str:
    """Add rules to the classes of a configuration, behind those that it has; what it has already is not added.

    Mistakes stay for the broker to find: they are its to explain. What is no TOML is given back as it is.
    """
    try:
        document = tomllib.loads(base)
    except (ValueError, RecursionError):  # beside what is no TOML: numbers too long, and brackets too deep
        return base
    for traffic_class, more in rules.items():
        classes = document.setdefault("class", {})
        entry = classes.setdefault(traffic_class, {}) if isinstance(classes, dict) else None
        match = entry.setdefault("match", []) if isinstance(entry, dict) else None
        if isinstance(match, list):
            match += [one for one in map(_written, more) if one not in match]
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in document.items()]
    return HEADING.format(base=name) + "".join(lines)


def _written(rule: MatchRule) -> dict[str, str]:
    return {"cgroup": rule.cgroup} if rule.cgroup is not None else {"address": str(rule.address)}


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "a").replace("-", "a").isalnum() else _text(key)


def _text(text: str) -> str:
    """JSON's strings are TOML's basic strings, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        case int() | float():
            return repr(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            inside = ", ".join(f"{_key(str(key))} = {_value(one)}" for key, one in value.items())
            return f"{{ {inside} }}" if inside else "{}"
    raise TypeError(f"no value of TOML: {value!r}")
