"""What all scenarios of one run share: settings, records, what to say, how much time is left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hive_qos.errors import HiveError
from tools.brokerbench import decisions
from tools.brokerbench.records import Writer
from tools.brokerbench.settings import Settings
from tools.brokerbench.stage import Stage


class Run:
    """One run.

    Args:
        first_round: number of its first round; others, which are in the records already, come before.
        say: print a line. show: show how far a long block is.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        *,
        first_round: int,
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self.settings, self.writer, self.first_round, self.say, self.show = settings, writer, first_round, say, show
        self._due_s = time.monotonic() + settings.run_seconds_max

    def write(self, kind: str, scenario: str, **fields: Any) -> None:
        """Write one record."""
        self.writer.write({"kind": kind, "scenario": scenario, **fields})

    def rounds(self, count: int) -> range:
        """Numbers of the rounds of this run."""
        return range(self.first_round, self.first_round + count)

    @property
    def in_time(self) -> bool:
        """Whether another block may begin."""
        return time.monotonic() < self._due_s

    @contextmanager
    def guarded(self, scenario: str, what: str) -> Iterator[None]:
        """Turn what goes wrong inside into a record, and go on with what comes after."""
        try:
            yield
        except (HiveError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.write("failure", scenario, what=what, error=str(error))
            self.say(f"{scenario}: {what}: {error}")

    def keep_decisions(self, stage: Stage, *, tag: str) -> Mapping[str, list[dict[str, Any]]]:
        """What each broker decided in a block, in short; the recordings themselves go beside the records."""
        found = {}
        for host, seat in stage.brokers.seats.items():
            found[host] = decisions.ticks(seat.recording)
            decisions.move(seat.recording, self.writer.directory / "decisions" / f"{tag}-{host}.jsonl")
        return {host: ticks for host, ticks in found.items() if ticks}
