"""Lines of a screen: a name with figures beside it, and notes below. What is long wraps.

A screen has 80 columns. On a narrower one a row leaves out the figures that matter least, down to two at 40 columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hive_qos.text import printable
from hive_qos.units import format_rate, format_size

NAME, COLUMN = 18, 12
"""Of the name, and of each figure: a space and "38.8 Mbit/s". Five figures and a name are 78 columns."""
NAME_NARROW = 16
"""With two figures 40 columns."""
TAIL_MIN = 10
"""Columns for two spaces and a beginning of an address."""
NOTE_LENGTH_MAX = 500
"""Longer than every reason of ours, and six lines at most of a text that somebody else chose."""
_SPANS = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))
"""From two of a unit on a time is told in it: "90 s", and then "2 min"."""


class Output(Console):
    """Standard output for people. Who closes a pipe has read enough: `guarded` ends the command in silence."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Let the caller know; rich would exit as if something were wrong.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


@dataclass(frozen=True)
class Row:
    """A name and what stands beside it; a name that is longer than its column has a line of its own.

    Args:
        cells: as wide as their columns.
        first: the cells that matter most, by their number; the last of these go first where room is short.
        tail: of any length: where it does not fit beside the cells it has a line of its own, and none beside few cells.
        style: of the name.
        one_line: shorten what is too long, for a list that is as long as the terminal.
    """

    name: str
    cells: Sequence[str]
    first: Sequence[int]
    tail: str = ""
    style: str = ""
    one_line: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width that there is."""
        room = options.max_width
        width = NAME if NAME + sum(map(cell_len, self.cells)) <= room else NAME_NARROW
        shown: set[int] = set()
        left = room - width
        for number in self.first:
            if cell_len(self.cells[number]) > left and shown:
                break
            shown.add(number)
            left -= cell_len(self.cells[number])
        row = "".join(cell for number, cell in enumerate(self.cells) if number in shown)
        if self.one_line:
            whole = Text.assemble((set_cell_size(_short(self.name, width - 1), width), self.style), row)
            yield whole + Text(f"  {_short(self.tail, left - 2)}") if self.tail and left > TAIL_MIN else whole
            return
        beside = self.tail and cell_len(self.tail) + 2 <= left
        if beside:
            row += f"  {self.tail}"
        if cell_len(self.name) <= width:
            yield Text.assemble((self.name + " " * (width - cell_len(self.name)), self.style), row)
        else:
            yield Text(self.name, style=self.style)
            yield Text(" " * width + row)
        if self.tail and not beside and len(shown) == len(self.cells):
            yield Note(self.tail)


def _short(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def line(name: str, *figures: str, style: str = "", first: Sequence[int] | None = None) -> Row:
    """A name and its figures, right-aligned. `first` as of `Row`; the default is from left to right."""
    cells = [f"{figure:>{COLUMN}}" for figure in figures]
    return Row(name, cells, range(len(cells)) if first is None else first, style=style)


@dataclass(frozen=True)
class Note:
    """Something about the line above, indented, wrapped between words; what it is about stands before it."""

    text: str
    style: str = ""
    about: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Wrap it; nothing is padded, for what is piped is searched and copied."""
        before = f"    {self.about}: " if self.about else "    "
        lines = Text(before + self.text, style=self.style).wrap(console, options.max_width)
        indent = " " * (8 if self.about else 4)
        first, *_ = lines
        first.rstrip()
        yield first
        rest = Text((before + self.text)[len(first.plain) :].strip(), style=self.style)
        if rest.plain:
            for line in rest.wrap(console, max(10, options.max_width - len(indent))):
                line.rstrip()
                yield Text(indent, style=self.style) + line


def items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of a list in a document of any version."""
    value = document.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def code_of(reason: object) -> str:
    """The code of a reason, "" where there is none."""
    return printable(str(reason.get("code", ""))) if isinstance(reason, Mapping) else ""


def reason_text(reason: object) -> str:
    """The sentence of a reason, "" where there is none."""
    return printable(str(reason.get("text", "")), length_max=NOTE_LENGTH_MAX) if isinstance(reason, Mapping) else ""


def name_of(value: object) -> str:
    """A name from outside, safe to print; a question mark where there is none."""
    return "?" if value is None else printable(str(value))


def number(value: object) -> float:
    """A figure to sort or compare by; 0 where there is none."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def count(value: object) -> str:
    """A whole number, or a dash."""
    return str(value) if isinstance(value, int) else "-"


def rate(value: object) -> str:
    """A rate, 0 without a unit, or a dash."""
    return ("0" if value == 0 else format_rate(value)) if isinstance(value, (int, float)) else "-"


def size(value: object) -> str:
    """A size, 0 without a unit, or a dash."""
    return ("0" if value == 0 else format_size(value)) if isinstance(value, (int, float)) else "-"


def span(seconds: float) -> str:
    """How long, in one unit: "12 s", "3 min", "2 h", "5 days"."""
    for unit_s, unit in _SPANS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def lasting(entry: Mapping[str, Any]) -> str:
    """How long what limits a class or job has done so: " for 3 min", " for 3 min, 40 % of the time", or nothing."""
    for_s, part = entry.get("limited_for_s"), entry.get("limited_part")
    if not isinstance(for_s, (int, float)) or for_s < 1:
        return ""
    often = isinstance(part, (int, float)) and part < PART_SHOWN_MAX
    return f" for {span(for_s)}" + (f", {100 * number(part):.0f} % of the time" if often else "")


PART_SHOWN_MAX = 0.9
"""From here on a cause lasts without pauses that matter."""
LIMITED_BY: Mapping[str, str] = {
    "link": "the link", "class": "its class", "peer": "its peer", "hold": "a hold", "processor": "the processor",
    "itself": "itself", "burst": "a burst", "ceiling": "its ceiling",
}  # fmt: skip
"""By code: what limits a class or job, after "limited by"."""


def limited_text(entry: Mapping[str, Any]) -> str:
    """What limits a class or job, for how long, and why, in one sentence."""
    limited_by = entry.get("limited_by")
    code = code_of(limited_by)
    text = reason_text(limited_by)
    return f"limited by {LIMITED_BY.get(code, code)}{lasting(entry)}" + (f": {text}" if text else "")


def capacity_text(interface: Mapping[str, Any]) -> str:
    """What an interface carries, and where that figure comes from."""
    capacity, text = rate(interface.get("capacity_bits_per_s")), reason_text(interface.get("capacity_reason"))
    return text if text.startswith(capacity) else f"{capacity}: {text}" if text else capacity
