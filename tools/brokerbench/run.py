"""What all scenarios of one run share: settings, records, what to say, how much time is left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hive_qos.errors import HiveError
from tools.brokerbench import decisions
from tools.brokerbench.settings import Settings
from tools.brokerbench.stage import Stage
from tools.measure.records import Writer


def turned(names: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of a round: it turns, so that nobody always comes after the same one."""
    shift = number % len(names)
    return (*names[shift:], *names[:shift])


class Run:
    """One run.

    Args:
        say: print a line. show: show how far a long block is.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        *,
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self.settings, self.writer, self.say, self.show = settings, writer, say, show
        self._due_s = time.monotonic()

    def begin(self) -> None:
        """Give a scenario its time, whatever those before it took."""
        self._due_s = time.monotonic() + self.settings.scenario_seconds_max

    def write(self, kind: str, scenario: str, **fields: Any) -> None:
        """Write one record."""
        self.writer.write({"kind": kind, "scenario": scenario, **fields})

    @property
    def in_time(self) -> bool:
        """Whether another block of this scenario may begin."""
        return time.monotonic() < self._due_s

    @contextmanager
    def guarded(self, scenario: str, what: str) -> Iterator[None]:
        """Turn what goes wrong inside into a record, and go on with what comes after."""
        try:
            yield
        except (HiveError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.write("failure", scenario, what=what, error=str(error))
            self.say(f"{scenario}: {what}: {error}")

    def shows_steps(self, scenario: str) -> Callable[[str, Mapping[str, Any]], None]:
        """What shows each step of a scenario's one job as it ends."""

        def on_step(name: str, record: Mapping[str, Any]) -> None:
            self.show(f"{scenario}: step {record['step']:4d}  {record['step_s']:.2f} s")

        return on_step

    def keep_decisions(self, stage: Stage, *, tag: str) -> Mapping[str, list[dict[str, Any]]]:
        """What each broker decided in a block, in short; the recordings themselves go beside the records."""
        found = {}
        for host, seat in stage.brokers.seats.items():
            found[host] = decisions.ticks(seat.recording)
            decisions.move(seat.recording, self.writer.directory / "decisions" / f"{tag}-{host}.jsonl")
        return {host: ticks for host, ticks in found.items() if ticks}
