"""What adapters say of storage programs, by session, and the alarms about those that do not work."""

from __future__ import annotations

from collections.abc import Iterable

from broker.model.status_values import ProgramInfo
from broker.model.values import Alarm
from broker.sessions.messages import Program

SILENT_S = 60.0
"""An adapter tells each two seconds; one that has been silent for a minute hangs."""
FAILING_S = 30.0
"""A program that restarts is back within this."""


class ProgramTable:
    """The last that each session said of its program.

    Args:
        now_s: when the daemon began, on the caller's clock.
    """

    def __init__(self, *, now_s: float) -> None:
        self._told: dict[str, tuple[Program, float, float | None]] = {}
        self._seen_s: dict[str, float] = {}
        self._began_s = now_s

    def tell(self, session: str, program: Program, *, now_s: float) -> None:
        """Enter what a session says, instead of what it said before."""
        before, _, failing_s = self._told.get(session, (None, 0.0, None))
        if program.state == "working":
            failing_s = None
        elif failing_s is None or before is None or before.name != program.name:
            failing_s = now_s
        self._told[session] = program, now_s, failing_s

    def forget(self, session: str) -> None:
        """Take out what a session that is gone said."""
        self._told.pop(session, None)

    def infos(self, *, now_s: float) -> tuple[ProgramInfo, ...]:
        """All that were told lately, in the order of their sessions."""
        for session in [name for name, (_, told_s, _) in self._told.items() if now_s - told_s > SILENT_S]:
            del self._told[session]
        return tuple(
            ProgramInfo(
                session=session,
                name=program.name,
                kind=program.kind,
                state=program.state,
                text=program.text,
                limit_bits_per_s=program.limit_bits_per_s,
                upload_bytes=program.upload_bytes,
                waiting_bytes=program.waiting_bytes,
                download_bytes=program.download_bytes,
                age_s=max(0.0, now_s - told_s),
                failing_s=None if failing_s is None else now_s - failing_s,
            )
            for session, (program, told_s, failing_s) in self._told.items()
        )

    def alarms(self, configured: Iterable[str], *, now_s: float) -> tuple[Alarm, ...]:
        """What is wrong now.

        Args:
            configured: the names of `[[storage_program]]`.
        """
        infos = self.infos(now_s=now_s)
        found = [
            Alarm("storage-program-failed", info.name, info.text or info.state)
            for info in infos
            if info.failing_s is not None and info.failing_s >= FAILING_S
        ]
        told = {info.name for info in infos}
        names = tuple(configured)
        self._seen_s = {name: now_s if name in told else self._seen_s.get(name, self._began_s) for name in names}
        missing = [name for name in names if now_s - self._seen_s[name] > SILENT_S]
        if missing:
            text = f"nobody follows {', '.join(missing)}: its backlog and deadline are not known here"
            found.append(Alarm("storage-adapter-missing", "adapter", text))
        return tuple(found)
