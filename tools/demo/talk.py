"""What a person sees while a run goes on: a bar with the phase and the time left, and a line for every block."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tools.demo.plan import Block

NAMES = {
    "idle": "idle: no storage",
    "flooded": "flooded: storage, no control",
    "static": "static: fixed HTB tree",
    "brokered": "brokered: hive-qos",
    "other-link": "storage over another link",
}

STEP_COST = {"idle": 1.0, "other-link": 1.0, "flooded": 2.5, "static": 1.8, "brokered": 1.1}
"""How long a step takes beside an idle one, roughly: for the time left."""


def block_cost(block: Block) -> float:
    """Expected time of a block in idle steps."""
    half = 2.0 if block.half == "half" else 1.0
    return block.steps * STEP_COST[block.condition] * half


class Talk:
    """Terminal output of a run; without a terminal, lines only."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            TextColumn("{task.description:34}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._cost_left = self._cost_done = 0.0
        self._block_cost = 0.0
        self._begin_s = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def begin(self, blocks: Sequence[Block]) -> None:
        """Start the bar."""
        self._cost_left = sum(block_cost(block) for block in blocks)
        self._task = self._progress.add_task("", total=self._cost_left, note="")
        self._begin_s = time.monotonic()
        if self.console.is_terminal:
            self._progress.start()

    def block(self, block: Block) -> None:
        """Say which block begins."""
        self._block_cost = block_cost(block) / block.steps
        if self._task is not None:
            self._progress.update(self._task, description=f"{NAMES[block.condition]}, {block.half} rate")

    def step(self, record: Mapping[str, Any]) -> None:
        """Move the bar by one step of rank 0."""
        if self._task is None:
            return
        self._cost_done += self._block_cost
        self._cost_left -= self._block_cost
        left_s = max(0.0, self._cost_left) * (time.monotonic() - self._begin_s) / self._cost_done
        shown = f"step {record['step']:4d}  {record['step_s']:.2f} s  loss {record['loss']:.2f}"
        note = f"{shown}  about {left_s / 60:.0f} min left"
        self._progress.update(self._task, advance=self._block_cost, note=note)

    def skip(self, block: Block) -> None:
        """Leave a block out of the bar."""
        self._cost_left -= block_cost(block)
        if self._task is not None:
            self._progress.update(self._task, advance=block_cost(block))

    def block_done(self, block: Block, seconds: Sequence[float]) -> None:
        """Print what a block came to."""
        if seconds:
            what = f"{block.kind:8} {block.round + 1}  {NAMES[block.condition]:30} {block.half:4}"
            self.console.print(
                f"  {what}  {len(seconds):3d} steps, median {statistics.median(seconds):.3f} s", highlight=False
            )

    def end(self) -> None:
        """Take the bar away."""
        self._progress.stop()
