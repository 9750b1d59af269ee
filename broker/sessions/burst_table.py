"""Which bursts are announced now, by session, user, job and step, and through which interface each part of them goes.

Times come in; ages and durations go out, as `broker.model.values.Burst` wants them. A burst is kept until its end is
announced, its session is gone, or its deadline has been over for a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from broker.model.connection_report import BYTES_MAX
from broker.model.values import DESTINATIONS_MAX, Burst
from broker.sessions.messages import Announce

OVERDUE_S = 1.0
"""How long a burst outlives its deadline: as in `broker.model.values.Burst`."""
BURSTS_PER_SESSION_MAX = 16
"""Steps in flight of one program: two overlap at most; sixteen is a program that never ends its bursts."""
BURSTS_PER_USER_MAX = 128
"""64 ranks on a host with two steps each in flight; more would cost each tick milliseconds."""


class _Entry(Struct, frozen=True):
    uid: int
    bytes_by_interface: Mapping[str, int]
    by_destination: Mapping[str, Mapping[str, int]]  # by interface, the largest
    announced_s: float
    deadline_s: float  # absolute, on the caller's clock
    next_s: float | None  # absolute likewise


class BurstTable:
    """The announced bursts of all sessions."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[tuple[str, int], _Entry]] = {}
        self._of_user: dict[int, dict[tuple[str, str, int], None]] = {}  # in the order of their announcements

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())

    def announce(
        self, session: str, burst: Announce, *, uid: int, now_s: float, interface_of: Callable[[str], str | None]
    ) -> Mapping[str, int]:
        """Enter one burst, or add to it: a step that is announced again has so much more.

        Of too many of a session or a user, the oldest gives way.

        Args:
            uid: whose session it is.
            interface_of: the shaped interface towards an address, or None where it is not one of ours.

        Returns:
            The bytes of the whole burst through each interface.
        """
        before = self._take(session, burst.job, burst.step)
        by_interface = dict(before.bytes_by_interface) if before else {}
        by_destination = {name: dict(part) for name, part in before.by_destination.items()} if before else {}
        for address, size_bytes in burst.bytes_by_destination.items():
            interface = interface_of(address)
            if interface is not None:
                by_interface[interface] = min(BYTES_MAX, by_interface.get(interface, 0) + size_bytes)
                part = by_destination.setdefault(interface, {})
                part[address] = min(BYTES_MAX, part.get(address, 0) + size_bytes)
        mine = self._entries.setdefault(session, {})
        if len(mine) >= BURSTS_PER_SESSION_MAX:
            self._take(session, *next(iter(mine)))
        of_user = self._of_user.setdefault(uid, {})
        if len(of_user) >= BURSTS_PER_USER_MAX:
            self._take(*next(iter(of_user)))
        of_user[session, burst.job, burst.step] = None
        self._entries.setdefault(session, {})[burst.job, burst.step] = _Entry(
            uid=uid,
            bytes_by_interface=by_interface,
            by_destination={name: dict(_largest(part)) for name, part in by_destination.items()},
            announced_s=before.announced_s if before else now_s,
            deadline_s=now_s + burst.deadline_s,
            next_s=None if burst.next_s is None else now_s + burst.next_s,
        )
        return by_interface

    def end(self, session: str, *, job: str, step: int) -> bool:
        """Take a burst out; False when there was none."""
        return self._take(session, job, step) is not None

    def forget(self, session: str) -> bool:
        """Take out everything of a session that is gone; False when there was nothing."""
        mine = list(self._entries.get(session, ()))
        for job, step in mine:
            self._take(session, job, step)
        return bool(mine)

    def _take(self, session: str, job: str, step: int) -> _Entry | None:
        mine = self._entries.get(session, {})
        entry = mine.pop((job, step), None)
        if entry is not None:
            if not mine:
                del self._entries[session]
            of_user = self._of_user[entry.uid]
            del of_user[session, job, step]
            if not of_user:
                del self._of_user[entry.uid]
        return entry

    def current(self, *, now_s: float) -> dict[str, tuple[Burst, ...]]:
        """The bursts of each interface, those of the ranks of one user's job and step summed; drops what is long
        overdue."""
        entries = [
            (session, job, step, entry)
            for session, mine in self._entries.items()
            for (job, step), entry in mine.items()
        ]
        for session, job, step, entry in entries:
            if now_s > entry.deadline_s + OVERDUE_S:
                self._take(session, job, step)
        summed: dict[tuple[str, int, str, int], Burst] = {}
        for _, job, step, entry in entries:
            if now_s > entry.deadline_s + OVERDUE_S:
                continue
            for interface, size_bytes in entry.bytes_by_interface.items():
                burst = Burst(
                    job=job,
                    step=step,
                    announced_bytes=size_bytes,
                    age_s=now_s - entry.announced_s,
                    remaining_s=entry.deadline_s - now_s,
                    next_s=None if entry.next_s is None else max(0.0, entry.next_s - now_s),
                    uid=entry.uid,
                    by_destination=tuple(entry.by_destination[interface].items()),
                )
                key = interface, entry.uid, job, step
                known = summed.get(key)
                summed[key] = burst if known is None else _together(known, burst)
        grouped: dict[str, tuple[Burst, ...]] = {}
        for (interface, _, _, _), burst in summed.items():
            grouped[interface] = (*grouped.get(interface, ()), burst)
        return grouped


def _together(one: Burst, other: Burst) -> Burst:
    """Two ranks of one step: bytes add up; the first begins it, the last one's deadline ends it."""
    forecasts = [burst.next_s for burst in (one, other) if burst.next_s is not None]
    parts = dict(one.by_destination)
    for address, size_bytes in other.by_destination:
        parts[address] = parts.get(address, 0) + size_bytes
    return Burst(
        job=one.job,
        step=one.step,
        announced_bytes=one.announced_bytes + other.announced_bytes,
        age_s=max(one.age_s, other.age_s),
        remaining_s=max(one.remaining_s, other.remaining_s),
        next_s=min(forecasts) if forecasts else None,
        uid=one.uid,
        by_destination=_largest(parts),
    )


def _largest(by_destination: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The destinations that get most, largest first."""
    return tuple(sorted(by_destination.items(), key=lambda part: (-part[1], part[0]))[:DESTINATIONS_MAX])
