"""Which jobs there are, what each has delivered through which interface, and which leaf is whose.

A socket gets its leaf when it is passed, because only then we hold it: a job keeps its leaf as long as one of its
programs is connected. Jobs beyond the leaves share the default leaf of their class. A job is its user's: another user
who takes its name has another job, with a leaf and an account of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from broker.model.connection_report import ConnectionReport
from broker.model.values import JobKey, JobSample

SENDS_BYTES, SENDS_S = 3_000, 1.0
"""Two packets between two reports are traffic; a job without any for a second is idle."""


class LeafCounters(Protocol):
    """What the kernel counted of a leaf."""

    @property
    def sent_bytes(self) -> int:
        """Since the leaf was made."""

    @property
    def backlog_bytes(self) -> int:
        """That wait now."""


class Slots:
    """Who has which of a few leaves. A job that comes back gets its own again where nobody has had it since: another's
    counter would look like a burst.

    A socket of a job that has ended keeps its mark until it is closed, or until `enforce.reclassify` finds it. A UDP
    socket that is disconnected after each packet is rarely found. So a user gets leaves that nobody has had, while as
    many of them stay for others as he then has had; after that, those that he left himself. What others left comes
    last. Of two alike, the one that was left longer ago is taken.

    A socket keeps its leaf, so that none can be taken back for a user who comes later. So a user gets another one only
    while at least as many stay free as he then has (dynamic thresholds: Choudhury and Hahne, 1998). One alone has half
    of them, and eight are enough for four users who come one after the other.
    """

    def __init__(self, count: int) -> None:
        self._free: dict[int, JobKey | None] = dict.fromkeys(range(count))  # by whom each was left
        self._of_job: dict[JobKey, int] = {}

    def take(self, job: str, *, uid: int) -> int | None:
        """The leaf of a job, which may be its own already; None where there is none for it."""
        if (uid, job) in self._of_job:
            return self._of_job[uid, job]
        if not job or not self._free:
            return None
        mine = sum(owner == uid for owner, _ in self._of_job)
        if mine and mine + 1 > len(self._free) - 1:
            return None
        unused = sum(left_by is None for left_by in self._free.values())
        had = mine + sum(left_by is not None and left_by[0] == uid for left_by in self._free.values())

        def rank(slot: int) -> int:
            left_by = self._free[slot]
            if left_by is None:
                return 1 if not had or had + 1 <= unused - 1 else 3
            return 0 if left_by == (uid, job) else 2 if left_by[0] == uid else 4

        slot = min(self._free, key=rank)
        del self._free[slot]
        self._of_job[uid, job] = slot
        return slot

    def leave(self, job: JobKey) -> None:
        """Give a job's leaf back, where it has one."""
        slot = self._of_job.pop(job, None)
        if slot is not None:
            self._free[slot] = job

    def taken(self) -> Mapping[JobKey, int]:
        """The jobs that have a leaf."""
        return dict(self._of_job)


class JobTable:
    """The jobs of all sessions.

    Args:
        slots: how many leaves there are for jobs of compute.
    """

    def __init__(self, slots: int) -> None:
        self._slots = Slots(slots)
        self._programs: dict[tuple[str, JobKey], set[str]] = {}  # sessions, by class and job
        self._delivered: dict[tuple[str, str, JobKey], tuple[int, float]] = {}  # bytes, last time; with the interface

    def register(self, session: str, *, job: str, traffic_class: str, uid: int) -> int | None:
        """A program passed a socket: enter it, and give the slot of the leaf that the socket shall have, if any."""
        if not job:
            return None
        self._programs.setdefault((traffic_class, (uid, job)), set()).add(session)
        return self._slots.take(job, uid=uid) if traffic_class == "compute" else None

    def forget(self, session: str) -> None:
        """A session is gone; of a job with no other nothing is kept."""
        for key in [key for key, sessions in self._programs.items() if session in sessions]:
            self._programs[key].discard(session)
            if not self._programs[key]:
                self._drop(*key)

    def delivered(
        self,
        job: JobKey,
        deliveries: Iterable[tuple[ConnectionReport, int]],
        *,
        interface_of: Callable[[str], str | None],
        now_s: float,
    ) -> None:
        """Add what a program of a job reports to have delivered since its last report."""
        for connection, size_bytes in deliveries:
            if (connection.traffic_class, job) not in self._programs:
                continue
            interface = interface_of(connection.peer.address)
            if interface is not None:
                key = (interface, connection.traffic_class, job)
                before, last_s = self._delivered.get(key, (0, float("-inf")))
                self._delivered[key] = (before + size_bytes, now_s if size_bytes >= SENDS_BYTES else last_s)

    def slots(self) -> Mapping[JobKey, int]:
        """The slots of compute's jobs."""
        return self._slots.taken()

    def samples(
        self, interface: str, leaves: Mapping[int, LeafCounters], *, now_s: float
    ) -> tuple[JobSample, ...]:  # fmt: skip
        """The jobs that have a leaf at an interface, or a connection through it.

        Args:
            leaves: the counters of the leaves by slot, as read last.
        """
        found = []
        slots = self._slots.taken()
        for (traffic_class, job), sessions in self._programs.items():
            reported = self._delivered.get((interface, traffic_class, job))
            slot = slots.get(job) if traffic_class == "compute" else None
            leaf = leaves.get(slot) if slot is not None else None
            if reported is None and leaf is None:
                continue
            size_bytes, last_s = reported or (0, float("-inf"))
            found.append(
                JobSample(
                    job=job[1],
                    traffic_class=traffic_class,
                    delivered_bytes=size_bytes,
                    programs=len(sessions),
                    sends=now_s - last_s <= SENDS_S,
                    leaf_sent_bytes=leaf.sent_bytes if leaf is not None else None,
                    leaf_backlog_bytes=leaf.backlog_bytes if leaf is not None else None,
                    uid=job[0],
                )
            )
        return tuple(found)

    def _drop(self, traffic_class: str, job: JobKey) -> None:
        del self._programs[traffic_class, job]
        if traffic_class == "compute":
            self._slots.leave(job)
        for key in [key for key in self._delivered if key[1:] == (traffic_class, job)]:
            del self._delivered[key]
