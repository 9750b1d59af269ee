"""A usage report as a table of at most 80 columns, largest first, with its sum. Narrow screens show fewer figures."""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from broker.cli.show.report_command import FIGURES
from broker.cli.show.screen import items
from broker.model.usage import keys_of
from hive_qos.text import printable
from hive_qos.units import format_size

SHOWN_MAX = 200
"""More than anybody reads; `--csv` and `--json` have all."""
FIGURE, NAME_MAX = 10, 20
"""Columns of a figure ("1023 MiB") and of a name: class, job, user and four figures are 80."""
HEADINGS = ("carried", "lent", "borrowed", "repaid")


def render(document: Mapping[str, Any], by: Sequence[str]) -> RenderableType:
    """Everything that a report has. Times are local, days those of UTC."""
    rows = items(document, "rows")
    begin, end = (_local(document.get(key)) for key in ("since_s", "until_s"))
    title = Text(f"sent from {begin} to {end}")
    if not rows:
        return Group(title, Text("nothing is recorded; the broker writes once a minute"))
    keys = keys_of(by)
    if not set(keys) & {"hour_s", "day_s"}:
        rows = sorted(rows, key=lambda row: -int(row.get("carried_bytes", 0)))
    names = [[_shown(row, key) for key in keys] for row in rows[:SHOWN_MAX]]
    headings = [{"hour_s": "hour", "day_s": "day", "uid": "user"}.get(key, key) for key in keys]
    total = {name: sum(int(row.get(name, 0)) for row in rows) for name in FIGURES}
    widths = [max(map(len, column)) for column in zip(headings, *names, strict=True)]
    parts: list[RenderableType] = [title, _Line(headings, widths, HEADINGS, style="bold")]
    parts += [_Line(name, widths, _figures(row)) for name, row in zip(names, rows, strict=False)]
    if len(rows) > SHOWN_MAX:
        parts.append(Text(f"and {len(rows) - SHOWN_MAX} more rows; --csv and --json have them"))
    if keys:
        parts.append(_Line(["sum", *[""] * (len(keys) - 1)], widths, _figures(total), style="bold"))
    return Group(*parts)


@dataclass(frozen=True)
class _Line:
    """Names, and of the figures the first ones for which there is room."""

    names: Sequence[str]
    widths: Sequence[int]
    figures: Sequence[str]
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width that there is."""
        left = " ".join(f"{name:<{width}}" for name, width in zip(self.names, self.widths, strict=True))
        shown = max(1, (options.max_width - len(left)) // FIGURE)
        yield Text(left + "".join(f"{figure:>{FIGURE}}" for figure in self.figures[:shown]), style=self.style)


def _figures(row: Mapping[str, Any]) -> list[str]:
    return ["0" if not row.get(name) else format_size(row[name]) for name in FIGURES]


def _shown(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if key in ("hour_s", "day_s"):
        return _local(value) if key == "hour_s" else datetime.fromtimestamp(float(value or 0), UTC).strftime("%Y-%m-%d")
    if key == "uid":
        return "-" if value is None else _user(int(value))
    return printable(str(value), length_max=NAME_MAX) if value else "-"


def _user(uid: int) -> str:
    try:
        return printable(pwd.getpwuid(uid).pw_name, length_max=NAME_MAX)
    except KeyError:
        return str(uid)


def _local(seconds: object) -> str:
    return (
        datetime.fromtimestamp(float(seconds)).strftime("%Y-%m-%d %H:%M") if isinstance(seconds, (int, float)) else "?"
    )
