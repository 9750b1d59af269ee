"""rclone with `--rc`, through its remote control ("Remote controlling rclone", rclone.org).

`core/bwlimit` counts bytes a second, apart for sending and receiving; -1 means no limit. A limit lasts until rclone
ends, or until its own timetable (`--bwlimit` with times) sets the next one.
"""

from __future__ import annotations

from broker.adapters.http import ProgramHttp, basic
from broker.adapters.program import Backlog, Settings, StorageAdapter, number
from broker.policy.types import StorageProgram


class Rclone(StorageAdapter):
    """One rclone, with `user:password` as its key."""

    limits = True
    runs_alike = True  # in a container its process is always number 1
    limit_keys = ("send",)

    def __init__(self, program: StorageProgram, key: str) -> None:
        self._http = ProgramHttp(program, basic(key))

    def read(self) -> Backlog:
        """What it knows to be left of all its transfers; that grows while it still lists."""
        stats = self._http.json("POST", "/core/stats", {})
        return Backlog(max(0, number(stats, "totalBytes") - number(stats, "bytes")))

    def settings(self) -> tuple[str, Settings]:
        """Its two limits, and its process."""
        limit = self._http.json("POST", "/core/bwlimit", {})
        run = str(number(self._http.json("POST", "/core/pid", {}), "pid"))
        return run, {"send": number(limit, "bytesPerSecondTx"), "receive": number(limit, "bytesPerSecondRx")}

    def limited(self, found: Settings, rate_bits_per_s: int) -> Settings | None:
        """Receiving stays as it is."""
        own, wanted = found["send"], max(1, rate_bits_per_s // 8)
        return {**found, "send": min(wanted, own) if own > 0 else wanted}

    def write(self, settings: Settings) -> None:
        """In force at once."""
        self._http.json("POST", "/core/bwlimit", {"rate": f"{_rate(settings['send'])}:{_rate(settings['receive'])}"})

    def rate_bits_per_s(self, settings: Settings) -> int | None:
        """Of sending."""
        return settings["send"] * 8 if settings["send"] > 0 else None


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s}B" if bytes_per_s > 0 else "off"
