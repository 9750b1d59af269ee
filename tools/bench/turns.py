"""Contenders taking turns, each turn a record; one that fails is written down and the others go on."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tools.bench import machine
from tools.bench.contenders import Contender
from tools.bench.pairs import Pair, made
from tools.bench.place import Place
from tools.bench.settings import Settings
from tools.bench.side import BenchError
from tools.lab import Lab, LabError
from tools.measure.records import Writer

Measure: TypeAlias = Callable[[Pair], Sequence[Mapping[str, Any]]]

FAILURES_MAX = 2
"""A contender that failed so often in a scenario is left alone: each failure may cost a time limit."""


class Named(Protocol):
    """Anything with a name in records and tables."""

    @property
    def name(self) -> str:
        """It."""


class Attempts:
    """Records of a run, its failures among them, and its end in time.

    Args:
        say: takes a line of what goes on.
        run_seconds_max: no measurement begins after so long.
    """

    def __init__(self, writer: Writer, say: Callable[[str], None], *, run_seconds_max: float) -> None:
        self._writer, self.say = writer, say
        self._due_s = time.monotonic() + run_seconds_max
        self._failures: dict[tuple[str, str], int] = {}

    def write(self, scenario: str, contender: Named, **fields: Any) -> None:
        """Write one record."""
        self._writer.write({"scenario": scenario, "contender": contender.name, **fields})

    def failed(self, scenario: str, contender: Named, error: Exception) -> None:
        """Write down that a contender could not be measured."""
        key = (scenario, contender.name)
        self._failures[key] = self._failures.get(key, 0) + 1
        self.write(scenario, contender, kind="failure", error=str(error))
        self.say(f"{scenario}: {contender.name}: {error}")

    def may(self, scenario: str, contender: Named) -> bool:
        """Whether it is worth trying, and there is time; the first time that there is none is written down."""
        key = (scenario, contender.name)
        if self._failures.get(key, 0) >= FAILURES_MAX:
            return False
        if time.monotonic() >= self._due_s:
            self.failed(scenario, contender, BenchError("no time was left"))
            self._failures[key] = FAILURES_MAX
            return False
        return True

    @contextmanager
    def guarded(self, scenario: str, contender: Named) -> Iterator[None]:
        """Turn what goes wrong inside into a record."""
        try:
            yield
        except (BenchError, LabError, OSError, subprocess.SubprocessError) as error:
            self.failed(scenario, contender, error)


class Run(Attempts):
    """What all scenarios of one run share."""

    def __init__(self, settings: Settings, folder: Path, writer: Writer, say: Callable[[str], None]) -> None:
        super().__init__(writer, say, run_seconds_max=settings.run_seconds_max)
        self.settings, self.folder = settings, folder

    def pairs(
        self, stack: ExitStack, scenario: str, contenders: Sequence[Contender], first: Place, second: Place
    ) -> list[Pair]:
        """Start all contenders that are here; they end with `stack`."""
        found = []
        for contender in contenders:
            if contender.missing() or not self.may(scenario, contender):
                continue
            with self.guarded(scenario, contender):
                found.append(stack.enter_context(made(contender, first, second, folder=self.folder, tag=scenario)))
        return found

    def turns(
        self, scenario: str, case: str, pairs: Sequence[Pair], measure: Measure, *, repetitions: int, lab: Lab | None
    ) -> None:
        """Let all pairs take turns; the order rotates, so that nobody always comes after the same one.

        Args:
            measure: gives the records of one turn; scenario, case, contender, repetition and the machine's counters
                are added.
        """
        for repetition in range(repetitions):
            for place in range(len(pairs)):
                pair = pairs[(place + repetition) % len(pairs)]
                if not self.may(scenario, pair.contender):
                    continue
                with self.guarded(scenario, pair.contender):
                    begin = machine.read(lab)
                    records = measure(pair)
                    used = machine.between(begin, machine.read(lab))
                    for record in records:
                        self.write(
                            scenario, pair.contender, case=case, repetition=repetition, **{"machine": used, **record}
                        )
            self.say(f"{scenario}: {case}: turn {repetition + 1} of {repetitions}")


@contextmanager
def lab_up(lab: Lab) -> Iterator[Lab]:
    """A declared lab for the length of the block."""
    lab.up()
    with contextlib.closing(lab):
        yield lab
