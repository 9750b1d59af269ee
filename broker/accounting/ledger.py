"""Bytes by hour, interface, class, job and user, from counters and decisions. Pure.

carried    the difference of two readings of a class' counter. Jobs' own counters say which part is whose; they may say
           payload where the class counts the wire, so what is left is nobody's. What the kernel counted of a job's
           leaf goes first: programs may report more than there was.
lent       what the lender lacked of its guarantee while it had more to send and others went beyond theirs, over the
           time since the last reading. borrowed: the same bytes, by who took them.
repaid     what the lender got above its guarantee while it had lent more than was repaid.

A class' lent, borrowed and repaid bytes are divided among its jobs as what they carried meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from broker.law.sharing.promises import LENDER
from broker.model.usage import HOUR_S, Usage, UsageKey
from broker.model.values import NO_JOB, ClassAllocation, ClassSample, InterfaceAllocation, InterfaceSample, JobKey

KEYS_MAX = 512
"""Rows of an hour. A host has four classes and a few jobs; whoever makes up thousands has half of them at most."""
GAP_S_MAX = 10.0
"""A loan is counted over the time since the last reading; over a longer gap (a suspended host) nobody knows it."""


class LinkReading(Struct, frozen=True, kw_only=True):
    """One interface at one snapshot, outbound.

    Args:
        sample: its counters.
        plan: what was decided of them.
        lends_bits_per_s: what the lender lends now, by the class that borrows it.
    """

    sample: InterfaceSample
    plan: InterfaceAllocation
    lends_bits_per_s: Mapping[str, int]


class Ledger:
    """For one thread. What was counted waits until it is taken."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, JobKey | None], int] = {}
        self._lent_bytes: dict[str, int] = {}
        self._read_s: float | None = None
        self._hour_s = 0
        self._counted: dict[UsageKey, Usage] = {}
        self._keys: dict[int, set[UsageKey]] = {}

    def book(self, links: list[LinkReading], *, now_s: float, wall_s: float) -> None:
        """Count what happened since the last call.

        Args:
            links: every shaped interface.
            now_s: monotonic time of the counters. wall_s: seconds since 1970, for the hour.
        """
        elapsed_s = 0.0 if self._read_s is None else now_s - self._read_s
        self._read_s = now_s
        loans_s = elapsed_s if elapsed_s <= GAP_S_MAX else 0.0
        hour_s = self._hour_s = int(wall_s // HOUR_S) * HOUR_S
        seen: dict[tuple[str, str, JobKey | None], int] = {}
        for link in links:
            for counter in link.sample.classes:
                parts = self._carried(link.sample, counter, seen)
                whole = self._loans(link, counter.name, sum(parts.values()), elapsed_s=loans_s)
                for (uid, job), usage in _divided(whole, parts):
                    key = UsageKey(
                        hour_s=hour_s, interface=link.sample.name, traffic_class=counter.name, job=job, uid=uid
                    )
                    self._add(key, usage)
        self._last = seen  # an interface that went and comes again begins anew

    def take(self) -> dict[UsageKey, Usage]:
        """What was counted since the last call."""
        counted, self._counted = self._counted, {}
        self._keys = {hour_s: keys for hour_s, keys in self._keys.items() if hour_s == self._hour_s}
        return counted

    def _carried(
        self, sample: InterfaceSample, counter: ClassSample, seen: dict[tuple[str, str, JobKey | None], int]
    ) -> dict[JobKey, int]:
        """What each job has sent of a class since the last reading, the rest as nobody's."""
        whole = self._difference((sample.name, counter.name, None), counter.sent_bytes, seen)
        counted: dict[JobKey, int] = {}
        reported: dict[JobKey, int] = {}
        for job in sample.jobs:
            if job.traffic_class == counter.name:
                mine, sent = reported, job.delivered_bytes
                if job.leaf_sent_bytes is not None:
                    mine, sent = counted, job.leaf_sent_bytes
                mine[job.key] = self._difference((sample.name, counter.name, job.key), sent, seen)
        counted = _at_most(counted, whole)
        parts = {**counted, **_at_most(reported, whole - sum(counted.values()))}
        parts[NO_JOB] = parts.get(NO_JOB, 0) + whole - sum(parts.values())
        return parts

    def _difference(
        self,
        key: tuple[str, str, JobKey | None],
        now_bytes: int,
        seen: dict[tuple[str, str, JobKey | None], int],
    ) -> int:
        """Since the last reading. A counter that is new, or went back because it began anew, counts from here."""
        seen[key] = now_bytes
        return max(0, now_bytes - self._last.get(key, now_bytes))

    def _loans(self, link: LinkReading, name: str, carried: int, *, elapsed_s: float) -> Usage:
        """What a class carried, and what of it is lent, borrowed or repaid."""

        def bytes_of(bits_per_s: float) -> int:
            return int(bits_per_s * elapsed_s / 8)

        if name != LENDER:
            return Usage(carried_bytes=carried, borrowed_bytes=bytes_of(link.lends_bits_per_s.get(name, 0)))
        lent = bytes_of(sum(link.lends_bits_per_s.values()))
        owed = self._lent_bytes.get(link.sample.name, 0)
        plan = _class(link.plan, name)
        promised = bytes_of(plan.guarantee_bits_per_s) if plan is not None else carried
        repaid = min(owed, max(0, carried - promised)) if elapsed_s and not lent else 0
        self._lent_bytes[link.sample.name] = owed + lent - repaid
        return Usage(carried_bytes=carried, lent_bytes=lent, repaid_bytes=repaid)

    def _add(self, key: UsageKey, usage: Usage) -> None:
        if usage == Usage():
            return
        known = self._keys.setdefault(key.hour_s, set())
        if key not in known and self._has_enough(key.uid, known):
            key = UsageKey(hour_s=key.hour_s, interface=key.interface, traffic_class=key.traffic_class)
        known.add(key)
        self._counted[key] = self._counted.get(key, Usage()) + usage

    @staticmethod
    def _has_enough(uid: int | None, known: set[UsageKey]) -> bool:
        """Whether a user gets no more rows of an hour: he has as many as would be left, so that others find some."""
        return sum(one.uid == uid for one in known) >= KEYS_MAX - len(known)


def _at_most(parts: dict[JobKey, int], whole: int) -> dict[JobKey, int]:
    """Parts that are together no more than the whole: they are not read at the same time."""
    over = sum(parts.values())
    return {key: part * whole // over for key, part in parts.items()} if over > whole else parts


def _class(plan: InterfaceAllocation, name: str) -> ClassAllocation | None:
    return next((one for one in plan.classes if one.name == name), None)


def _divided(whole: Usage, parts: Mapping[JobKey, int]) -> Iterator[tuple[JobKey, Usage]]:
    """A class' bytes among its jobs, as what they carried; what rounding leaves is nobody's. The sum is exact."""
    carried = whole.carried_bytes
    rest = whole
    for key, part in parts.items():
        if key == NO_JOB or not carried or not part:
            continue
        own = Usage(
            carried_bytes=part,
            lent_bytes=whole.lent_bytes * part // carried,
            borrowed_bytes=whole.borrowed_bytes * part // carried,
            repaid_bytes=whole.repaid_bytes * part // carried,
        )
        rest = Usage(
            carried_bytes=rest.carried_bytes - own.carried_bytes,
            lent_bytes=rest.lent_bytes - own.lent_bytes,
            borrowed_bytes=rest.borrowed_bytes - own.borrowed_bytes,
            repaid_bytes=rest.repaid_bytes - own.repaid_bytes,
        )
        yield key, own
    yield NO_JOB, rest
