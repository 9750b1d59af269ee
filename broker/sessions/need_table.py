"""What storage programs declare now, by session, and through which interface it goes.

A need is kept until its program declares a backlog of 0, its session is gone, or it was not declared again for
`NEED_S`: a program that hangs needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from broker.model.values import Need
from broker.sessions.messages import Declare

NEED_S = 60.0
"""A replicator knows its backlog anew every few seconds; one that has been silent for a minute hangs."""
EVERYWHERE = ""
"""The key for every interface, of a program that names no destination."""


class _Entry(Struct, frozen=True):
    uid: int
    backlog_by_interface: Mapping[str, int]
    declared_s: float
    deadline_s: float | None  # absolute, on the caller's clock
    replicas_at_risk: int


class NeedTable:
    """The declared needs of all sessions; of each its last."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def declare(
        self, session: str, need: Declare, *, uid: int, now_s: float, interface_of: Callable[[str], str | None]
    ) -> None:
        """Enter what a session declares, instead of what it did before; nothing is left of it with a backlog of 0.

        Args:
            uid: whose session it is.
            interface_of: the shaped interface towards an address, or None where it is not one of ours.
        """
        self._entries.pop(session, None)
        if need.backlog_bytes <= 0:
            return
        parts: dict[str, int] = {}
        for address, size_bytes in need.bytes_by_destination.items():
            interface = interface_of(address)
            if interface is not None:
                parts[interface] = min(need.backlog_bytes, parts.get(interface, 0) + size_bytes)
        if not parts:  # or all go through an interface of somebody else's, as a VPN's are, and leave who knows where
            parts = {EVERYWHERE: need.backlog_bytes}
        self._entries[session] = _Entry(
            uid=uid,
            backlog_by_interface=parts,
            declared_s=now_s,
            deadline_s=None if need.deadline_s is None else now_s + need.deadline_s,
            replicas_at_risk=need.replicas_at_risk,
        )

    def forget(self, session: str) -> None:
        """Take out what a session that is gone declared."""
        self._entries.pop(session, None)

    def current(self, *, now_s: float) -> dict[str, tuple[Need, ...]]:
        """The needs of each interface, and of `EVERYWHERE`; drops what was not declared again."""
        for session in [name for name, entry in self._entries.items() if now_s - entry.declared_s > NEED_S]:
            del self._entries[session]
        grouped: dict[str, tuple[Need, ...]] = {}
        for session, entry in self._entries.items():
            for interface, backlog_bytes in entry.backlog_by_interface.items():
                need = Need(
                    session=session,
                    uid=entry.uid,
                    backlog_bytes=backlog_bytes,
                    age_s=now_s - entry.declared_s,
                    remaining_s=None if entry.deadline_s is None else entry.deadline_s - now_s,
                    replicas_at_risk=entry.replicas_at_risk,
                )
                grouped[interface] = (*grouped.get(interface, ()), need)
        return grouped
