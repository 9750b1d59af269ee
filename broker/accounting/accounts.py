"""What the loop knows of accounting: hand each snapshot over, and a reader gets rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from broker.accounting import database
from broker.accounting.ledger import Ledger, LinkReading
from broker.accounting.writer import UsageWriter
from broker.api.documents.snapshot import Snapshot
from broker.api.documents.verdicts import LinkFigures, lends_bits_per_s
from broker.events.log import Log
from broker.model.usage import UsageRow
from broker.model.values import Alarm


class Accounts:
    """`book` and `close` are for the loop's thread, `rows` for any.

    Args:
        state_dir: where the file lies.
        clock: monotonic seconds. wall_clock: seconds since 1970.
    """

    def __init__(
        self, state_dir: str, *, log: Log, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._path = Path(state_dir) / database.NAME
        self._clock, self._wall_clock = clock, wall_clock
        self._ledger = Ledger()
        self._writer = UsageWriter(self._path, log=log, wall_clock=wall_clock)

    def book(self, snapshot: Snapshot) -> None:
        """Count what happened since the last snapshot."""
        plans = {one.name: one for one in snapshot.decision.allocation.interfaces}
        links = [
            LinkReading(sample=sample, plan=plan, lends_bits_per_s=lends_bits_per_s(LinkFigures(entry=plan)))
            for sample in snapshot.measurements.interfaces
            if sample.counters_age_s is not None and (plan := plans.get(sample.name)) is not None
        ]
        self._ledger.book(links, now_s=self._clock(), wall_s=self._wall_clock())
        self._writer.add(self._ledger.take())

    def rows(self, *, since_s: float, until_s: float, by: Sequence[str]) -> list[UsageRow]:
        """What a report shows, as of the last time that the file was written. For `database.read`'s arguments.

        Raises:
            HiveError, OSError: as `database.read`.
        """
        return database.read(self._path, since_s=since_s, until_s=until_s, by=by)

    def alarms(self) -> tuple[Alarm, ...]:
        """Where what was carried cannot be kept."""
        alarm = self._writer.alarm
        return () if alarm is None else (alarm,)

    def close(self) -> None:
        """Write what was counted, and end."""
        self._writer.close()
