"""What parts of the daemon tell of themselves, for the status document. Values alone."""

from __future__ import annotations

from msgspec import Struct

from broker.model.reasons import Reason


class WatchdogInfo(Struct, frozen=True):
    """How the watchdog fares. `openings`: how often it has opened the ceilings while this daemon lived; `started`: how
    many watchdogs this daemon has had."""

    pid: int | None
    alive: bool
    openings: int
    started: int


class HostLoad(Struct, frozen=True):
    """How much of all processors was used in the last second (0 to 1), what memory there is, and what the daemon has;
    None where that is not known."""

    processors_used: float | None = None
    memory_available_bytes: int | None = None
    daemon_memory_bytes: int | None = None


class SegmentInfo(Struct, frozen=True):
    """How many segments an interface takes in one piece now (None: the kernel does not say), and why."""

    gso_max_segs: int | None
    gso_reason: Reason
