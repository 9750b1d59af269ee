"""Who sends and receives now: one row a program, class, protocol and peer, the busiest first. Pure.

TCP connections and those that sessions report are counted. UDP of other programs is not: the kernel has no counter of
a single UDP socket. What a class sends beyond all that is counted is theirs. Where one program alone can have sent it,
that is its rate; where several can, each is shown and its rate is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from broker.law.sharing.demand import SENDING_BITS_PER_S

SHOWN_MAX = 100
"""More than a tall terminal has lines; 20 KB of a document."""
UNCOUNTED_PART, UNCOUNTED_BITS_PER_S = 0.1, 100_000
"""What a class sends beyond what is counted and has to be somebody's: counted are payloads, of a class every byte."""


class Program(Struct, frozen=True):
    """A program that sends or receives now, in one class and by one protocol with one peer.

    `port` is the local one of a UDP socket without a peer. `rate_source` is `measured`, `unknown`, or `rest-of-class`,
    which is an estimate.
    """

    pid: int | None
    command: str | None
    uid: int | None
    traffic_class: str = field(name="class")
    protocol: str
    peer: str | None
    port: int | None
    connections: int
    throughput_bits_per_s: int | None
    received_bits_per_s: int | None
    rate_source: str

    @property
    def who(self) -> tuple[int | None, str | None, int | None]:
        """Which program it is."""
        return self.pid, self.command, self.uid


def together(rows: Iterable[Program]) -> list[Program]:
    """Add up what is of the same program, class, protocol and peer."""
    found: dict[tuple[object, ...], Program] = {}
    for row in rows:
        key = (*row.who, row.traffic_class, row.protocol, row.peer, row.port)
        known = found.get(key)
        found[key] = row if known is None else _sum(known, row)
    return list(found.values())


def busiest(
    counted: Iterable[Program], uncounted: Iterable[tuple[Program, bool]], *, class_bits_per_s: Mapping[str, int]
) -> list[Program]:
    """Who sends or receives now, the busiest first.

    Args:
        counted: connections whose bytes are counted.
        uncounted: UDP sockets whose bytes are not, and whether something of each was seen waiting lately.
        class_bits_per_s: what each class sends, by the kernel's counters.
    """
    rows = [row for row in together(counted) if _active(row)]
    sent: dict[str, int] = {}
    for row in rows:
        sent[row.traffic_class] = sent.get(row.traffic_class, 0) + (row.throughput_bits_per_s or 0)
    others = list(uncounted)
    for name, whole in class_bits_per_s.items():
        rest = whole - sent.get(name, 0)
        mine = [row for row, _ in others if row.traffic_class == name]
        seen = [row for row, waits in others if row.traffic_class == name and waits]
        if rest < max(UNCOUNTED_BITS_PER_S, UNCOUNTED_PART * whole):
            rows += together(seen)
        else:
            rows += _with_rest(together(seen or mine), rest)
    return sorted(
        rows, key=lambda row: (-_rate(row), row.throughput_bits_per_s is not None, row.command or "", row.pid or 0)
    )


def _with_rest(rows: list[Program], rest_bits_per_s: int) -> list[Program]:
    """The rest of a class is one program's, or nobody knows whose."""
    if len({row.who for row in rows}) != 1:
        return rows
    known = replace(rows[0], throughput_bits_per_s=rest_bits_per_s, rate_source="rest-of-class")
    if len(rows) > 1:  # of several sockets: what goes where is not known
        known = replace(known, peer=None, connections=sum(row.connections for row in rows))
    return [known]


def _sum(one: Program, other: Program) -> Program:
    return replace(
        one,
        connections=one.connections + other.connections,
        throughput_bits_per_s=_added(one.throughput_bits_per_s, other.throughput_bits_per_s),
        received_bits_per_s=_added(one.received_bits_per_s, other.received_bits_per_s),
    )


def _added(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _rate(row: Program) -> int:
    return (row.throughput_bits_per_s or 0) + (row.received_bits_per_s or 0)


def _active(row: Program) -> bool:
    return max(row.throughput_bits_per_s or 0, row.received_bits_per_s or 0) >= SENDING_BITS_PER_S
