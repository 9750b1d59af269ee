"""The state of the daemon's parts, for the status document. Values alone."""

from __future__ import annotations

from msgspec import Struct

from broker.model.reasons import Reason


class ProgramInfo(Struct, frozen=True):
    """A storage program, as its adapter tells.

    `state` is `working`, `unreachable`, `refused` (its key) or `unexpected` (its answer); `failing_s` since when it is
    another than `working`. `limit_bits_per_s` is the program's own. `waiting_bytes` are for peers that are away.
    """

    session: str
    name: str
    kind: str
    state: str
    text: str
    limit_bits_per_s: int | None
    upload_bytes: int
    waiting_bytes: int
    download_bytes: int
    age_s: float
    failing_s: float | None


class WatchdogInfo(Struct, frozen=True):
    """The watchdog's state. `openings` counts how often it opened the ceilings, `started` the watchdogs so far."""

    pid: int | None
    alive: bool
    openings: int
    started: int


class HostLoad(Struct, frozen=True):
    """The part of all processors in use, 0 to 1, in the last second; the host's memory; what the daemon has of it."""

    processors_used: float | None = None
    memory_available_bytes: int | None = None
    daemon_memory_bytes: int | None = None


class SegmentInfo(Struct, frozen=True):
    """How many segments an interface takes in one piece now (None: the kernel reports none), and why."""

    gso_max_segs: int | None
    gso_reason: Reason
