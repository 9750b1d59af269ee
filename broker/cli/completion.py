"""What shells complete beside commands and options: kinds of settings, and names that the broker knows.

Where no broker answers, nothing is proposed. A name that would have to be quoted is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import typer

from broker import client
from hive_qos.errors import HiveError

KINDS: Final = ("class", "job", "interface")
"""Of `hive-qos set`."""
CLASSES: Final = ("control", "compute", "storage", "other")
NAMES_MAX = 100
"""What a person still reads through."""
ANSWER_S_MAX = 0.5
"""Somebody waits at the prompt."""
_PLAIN = re.compile(r"[\w.@+-]+")


def kinds(incomplete: str) -> list[str]:
    """The kinds of things that have settings."""
    return _beginning(incomplete, KINDS)


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of things of the kind that was typed before."""
    match ctx.params.get("kind"):
        case "class":
            return _beginning(incomplete, CLASSES)
        case "job":
            return _beginning(incomplete, _of("jobs", "job"))
        case "interface":
            return _beginning(incomplete, _of("interfaces", "name"))
    return []


def subjects(incomplete: str) -> list[str]:
    """What `hive-qos why` explains: jobs, classes and programs."""
    return _beginning(incomplete, (*_of("jobs", "job"), *CLASSES, *_of("programs", "command")))


def _of(table: str, key: str) -> list[str]:
    """The names in a table of the status document."""
    try:
        document: Mapping[str, Any] = client.status(timeout_s=ANSWER_S_MAX)
        return [str(entry[key]) for entry in document[table] if entry.get(key)]
    except (HiveError, LookupError, TypeError, AttributeError):
        return []


def _beginning(incomplete: str, found: Iterable[str]) -> list[str]:
    wanted = (name for name in dict.fromkeys(found) if name.startswith(incomplete) and _PLAIN.fullmatch(name))
    return list(wanted)[:NAMES_MAX]
