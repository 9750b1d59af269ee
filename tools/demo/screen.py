"""What a person sees while a run goes on: the table as it fills, the time left, and what the broker says now."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hive_qos.units import format_rate
from tools.demo.plan import Block
from tools.demo.settings import Settings
from tools.demo.table import phase_table

NAMES = {
    "idle": "no storage",
    "flooded": "storage, no control",
    "static": "a fixed HTB tree with priorities",
    "brokered": "hive-qos",
    "other-link": "storage over another link",
}
CLASSES = {"compute": "training", "storage": "storage"}
CHANGE_S = 3.0
"""Of each block beside its seconds: its last steps end, storage or brokers start."""


class Screen:
    """Terminal output of a run; without a terminal, a line for every half that has ended.

    Args:
        console: where it goes.
        settings: of the run.
    """

    def __init__(self, console: Console, settings: Settings) -> None:
        self.console, self.settings = console, settings
        self._phases: Mapping[str, Any] = {
            condition: {half: {"steps": 0} for half in ("full", "half")} for condition in settings.phases
        }
        self._block: Block | None = None
        self._broker: RenderableType = Text()
        self._note = ""
        self._end_s = 0.0
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("", total=1.0)
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def begin(self, blocks: Sequence[Block]) -> None:
        """Show the table; it is filled by `figures`."""
        seconds = sum(block.seconds for block in blocks) + CHANGE_S * len(blocks)
        self._end_s = time.monotonic() + seconds
        self._progress.reset(self._task, total=seconds)
        if self.console.is_terminal:
            self._live.start()

    def block(self, block: Block) -> None:
        """Say which block begins."""
        self._block = block
        if block.condition != "brokered":
            self._broker = Text()

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step of rank 0."""
        self._note = f"step {record['step']}: {record['step_s']:.2f} s, loss {record['loss']:.2f}"

    def broker(self, document: Mapping[str, Any]) -> None:
        """Show what host a's broker says of its way out."""
        egress = [entry for entry in document["interfaces"] or () if entry.get("direction", "egress") == "egress"]
        if not egress:
            return
        rate, source = format_rate(egress[0]["capacity_bits_per_s"]), egress[0]["capacity_source"]
        shown = Table.grid(padding=(0, 2))
        for entry in egress[0]["classes"]:
            if entry["name"] in CLASSES:
                now = entry["throughput_bits_per_s"]
                shown.add_row(
                    CLASSES[entry["name"]], format_rate(now) if now is not None else "?", entry["reason"]["text"]
                )
        self._broker = Group(Text(f"hive-qos on host a: its link carries {rate} ({source})"), shown)

    def block_done(self, block: Block, seconds: Sequence[float], phases: Mapping[str, Any]) -> None:
        """Fill the table with what a block came to; print a line where there is no terminal."""
        self._phases = phases
        if seconds and not self.console.is_terminal:
            what = (
                f"round {block.round + 1}  {block.condition:10} {block.half} rate"
                if block.kind == "phase"
                else "warm-up"
            )
            self.console.print(
                f"  {what:34}{len(seconds):4d} steps, median {statistics.median(seconds):.3f} s", highlight=False
            )

    def end(self) -> None:
        """Take the table away: the report prints it again."""
        self._live.stop()

    def _render(self) -> Group:
        block, now_s = self._block, time.monotonic()
        current = (block.condition, block.half) if block and block.kind == "phase" else None
        left_s = max(0.0, self._end_s - now_s)
        total = self._progress.tasks[0].total or 1.0
        what = "warm-up"
        if block and block.kind == "phase":
            what = f"round {block.round + 1} of {self.settings.rounds}, {NAMES[block.condition]}"
        self._progress.update(self._task, completed=total - left_s, description=f"{what}, {_about(left_s)} left")
        return Group(
            phase_table(self._phases, rate_bits_per_s=self.settings.rate_bits_per_s, current=current),
            Text(self._note, style="dim"),
            self._progress,
            self._broker,
        )


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{10 * math.ceil(seconds / 10)} s"
