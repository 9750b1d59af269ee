"""What tapes of a volatile group say, for `hive-qos job --tape`: a line for each view and the steps in it. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hive_qos.text import few, printable

NAMES_MAX = 6
APART_S = 1.0
"""Steps that take longer are worth a word: somebody was waited for, or each is a meeting."""
LINE_LENGTH_MAX = 1000
"""Of a violation, which names all members."""


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """All that `record.replay` says."""
    for run in document["runs"]:
        yield printable(f"{run['job']}: {_count(len(run['tapes']), 'tape')}")
        for event in run["events"]:
            told = _view(event) if event["kind"] == "view" else _commits(event)
            yield printable(f"{_when(event['at_s'])} {told}")
    yield f"{_count(len(document['violations']), 'violation')}"
    for one in document["violations"]:
        yield printable(f"{one['where']}: {one['what']}", length_max=LINE_LENGTH_MAX)


def _view(event: Mapping[str, Any]) -> str:
    told = f"view {event['epoch']}: {_count(len(event['members']), 'member')}"
    for key in ("joining", "went", "came"):
        if event[key]:
            told += f"; {few(event[key], at_most=NAMES_MAX)} {key}"
    return told


def _commits(event: Mapping[str, Any]) -> str:
    (first, last), parts = event["steps"], event["contributors"]
    told = f"step {first}" if first == last else f"steps {first} to {last} (until {_when(event['until_s'])})"
    if parts is None:
        told += ": contributors unknown"
    else:
        told += f": {'' if parts[0] == parts[1] else f'{parts[0]} to '}{_count(parts[1], 'contributor')}"
    told += f", {event['done_again']} done again" if event["done_again"] else ""
    return f"{told}, at most {event['apart_s_max']:.1f} s apart" if event["apart_s_max"] > APART_S else told


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
