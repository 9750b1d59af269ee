"""One group's choice of algorithms: which table of links holds for which operation, and what came of each choice. Pure.

A rank whose link has changed so that the table would change begins an agreement (`agreement`) with its next operation,
beside that operation, and the others take part as soon as they hear of it. Where ranks begin one with different
operations, the latest of them, N, counts: the table that is agreed holds from operation N + LAG on, on every rank for
the same operations, however far one runs ahead of another. An operation that is called before its table is there waits.

If an agreement fails, its group's table stays what it was; ranks on which it did not fail would then plan differently,
which the signature of a call names. A rank on which one failed begins another with its next operation, and with that
all have the same again.

A group of one rank needs no agreement, nor does one in which nobody calls a collective.
"""

from __future__ import annotations

import bisect
import functools
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from transport.collectives.algorithms.registry import ALGORITHMS
from transport.collectives.codecs import Codec
from transport.collectives.planning import agreement
from transport.collectives.planning.agreement import FULL, FULL_LATELY, Row
from transport.collectives.planning.cost_model import Candidate, Choice, Network, choose, operation_name
from transport.collectives.planning.link_rates import LinkReport
from transport.collectives.problem import Operation, Plan, Problem

Report: TypeAlias = Callable[[frozenset[int]], LinkReport]
"""What this rank measured of its link, given the ranks of the endpoint that are at other sites."""

LAG = 1
"""Operations that go on while the ranks agree: the one with which an agreement begins hides it."""
LOOK_EVERY_S = 0.5
"""How often a rank looks whether its link has changed. What it measured has to hold for up to 4 s first."""
AHEAD_MAX = 512
"""Operations after which an agreement begins anyway: so far one rank can be ahead of another, or say that it is."""
CHOICES_KEPT = 128
"""Shapes. A training step has some dozens."""
TIMES_KEPT = 16


@dataclass
class _Kept:
    """A choice for a shape, and how long operations with it took."""

    problem: Problem
    choice: Choice
    count: int = 0
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))


class Planner:
    """See the module. One of each group; in the transport's thread, but for `latest` and `explain`.

    Args:
        ranks: the group's members as ranks of the endpoint. rank: which of them this is.
        forced: an algorithm to use wherever it can be; "" for the best.
        site: the name of this rank's site, "" where it has none.
        host: what tells its machine from others.
    """

    def __init__(self, *, ranks: Sequence[int], rank: int, forced: str, site: str, host: str) -> None:
        self._ranks = ranks
        self._rank = rank
        self._forced = forced
        self._site, self._host = site, host
        self._tables: list[tuple[int, Network | None]] = [(0, Network.uniform(len(ranks)))]
        self._began = 0
        self._rows: Sequence[Row] = ()
        self._looked_s = 0.0
        # Any thread adds to it. Where all of it is looked at, that is one call of C's which runs no code of Python's.
        self._choices: dict[tuple[Problem, int], _Kept] = {}

    @property
    def agrees(self) -> bool:
        """Whether there are agreements at all."""
        return len(self._ranks) > 1

    @property
    def table(self) -> Network:
        """The latest that was agreed on."""
        return next(table for _, table in reversed(self._tables) if table is not None)

    def is_due(self, number: int, report: Report, *, now_s: float, invited: bool = False) -> bool:
        """Whether an agreement begins with this operation; asked once for each, in any order.

        Args:
            now_s: on the monotonic clock.
            invited: another rank has begun one.
        """
        first, table = self._tables[-1]
        if not self.agrees or table is None:
            return False
        if invited:
            return True
        return number >= first and (not self._rows or number >= first + AHEAD_MAX or self._has_news(report, now_s))

    def _has_news(self, report: Report, now_s: float) -> bool:
        """Whether the group would have another table if all others said what they said last.

        Of several links that were full, each rank would wait for another one's news: who is bound by its own no more
        asks.
        """
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        row, said = self._row(0, report), self._rows[self._rank]
        if int(row[FULL]) < FULL_LATELY == int(said[FULL]):
            return True
        return agreement.would_change(self.table, [*self._rows[: self._rank], row, *self._rows[self._rank + 1 :]])

    def begin(self, number: int, report: Report) -> Row:
        """An agreement begins, with or after the operation that is due; this rank's row."""
        firsts = [first for first, _ in self._tables]
        self._began = max(number, firsts[-1])  # who is invited may not be where the last table begins to hold
        needed = max(bisect.bisect_right(firsts, number) - 1, 0)
        self._tables = [*self._tables[needed:], (self._began + LAG, None)]
        return self._row(self._began, report)

    def _row(self, number: int, report: Report) -> Row:
        table = self.table
        far = frozenset(
            rank for rank, site in zip(self._ranks, table.sites, strict=True) if site != table.sites[self._rank]
        )
        return agreement.row_of(
            report(far), ranks=self._ranks, table=table, operation=number, site=self._site, host=self._host
        )

    def agreed(self, rows: Sequence[Row]) -> None:
        """The agreement has ended."""
        number = agreement.last_operation(rows, ahead_max=AHEAD_MAX) + LAG
        self._tables[-1] = (number, agreement.agree(rows, self.table, number=number))
        self._rows = rows

    def failed(self) -> None:
        """The agreement has failed: what held goes on."""
        self._tables[-1] = (self._began + LAG, self.table)
        self._rows = ()

    def choice(self, problem: Problem, number: int) -> Choice | None:
        """How an operation is done; None while its table is not there yet."""
        for first, table in reversed(self._tables):
            if number >= first:
                return None if table is None else self._choose(problem, table)
        return self._choose(problem, self.table)  # one that a signal's handler overtook, of an older table's time

    def latest(self, problem: Problem) -> Choice:
        """How an operation would be done by the latest table. From any thread."""
        return self._choose(problem, self.table)

    def ended(self, problem: Problem, choice: Choice, *, took_s: float) -> None:
        """An operation has ended well."""
        kept = self._choices.get((_shape(problem), choice.network_number))
        if kept is not None:
            kept.count += 1
            kept.times_s.append(took_s)

    def _choose(self, problem: Problem, table: Network) -> Choice:
        key = (_shape(problem), table.number)
        kept = self._choices.get(key)
        if kept is None:
            if problem.operation not in ALGORITHMS:
                only = Candidate(Plan(), 0.0, "")
                return Choice(only, (only,), "there is one way alone")
            made = _Kept(key[0], choose(key[0], table, forced=self._forced))
            kept = self._choices.setdefault(key, made)  # another thread may have been faster, and counted in its own
            for oldest in list(self._choices)[:-CHOICES_KEPT]:
                self._choices.pop(oldest, None)
        return kept.choice

    def saved_bytes(self, rank: int) -> int:
        """What compression has kept a rank of the group from sending, in the shapes that are remembered."""
        saved = 0
        for kept in list(self._choices.values()):
            if kept.problem.codec is not Codec.NONE and kept.count:
                plan, plain = kept.choice.taken.plan, replace(kept.problem, codec=Codec.NONE, feeds_back=False)
                traffic = ALGORITHMS[kept.problem.operation][plan.algorithm].traffic
                less = traffic(plain, plan).pairs[rank].sum() - traffic(kept.problem, plan).pairs[rank].sum()
                saved += kept.count * int(less)
        return saved

    def explain(self) -> dict[str, object]:
        """The table and all choices, as JSON has them: seconds, bytes and bits per second."""
        table = self.table
        return {
            "network": table.explained(),
            "forced": self._forced,
            "collectives": [
                {
                    "operation": operation_name(kept.problem.operation),
                    "bytes": sum(kept.problem.counts or kept.problem.receive_counts) * kept.problem.item_bytes,
                    "compression": kept.problem.codec.name.lower(),
                    **kept.choice.explained(),
                    "measured_s": statistics.median(times_s) if (times_s := list(kept.times_s)) else None,
                    "count": kept.count,
                }
                for kept in list(self._choices.values())
            ],
        }


@functools.lru_cache(maxsize=CHOICES_KEPT)
def _shape(problem: Problem) -> Problem:
    """What all ranks have in common."""
    counts = () if problem.operation is Operation.ALL_GATHER else problem.counts
    return replace(problem, rank=0, turn=0, counts=counts)
