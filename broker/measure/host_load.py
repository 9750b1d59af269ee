"""Measure the host's load and the daemon's size, to explain late ticks. No decision uses them."""

from __future__ import annotations

import psutil

from broker.model.status_values import HostLoad

LOOK_S = 1.0
"""Over less, the kernel's ticks of 10 ms are what is measured."""


class HostLoads:
    """Looks once a second at most. For one thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._looked_s: float | None = None
        self._load = HostLoad()

    def look(self, *, now_s: float) -> HostLoad:
        """The figures of the last second; None where the kernel reports none, or not yet."""
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._load = self._read(first=self._looked_s is None)
            self._looked_s = now_s
        return self._load

    def _read(self, *, first: bool) -> HostLoad:
        try:
            used = psutil.cpu_percent(None) / 100  # since the last time that it was asked
            return HostLoad(
                processors_used=None if first else min(1.0, used),
                memory_available_bytes=psutil.virtual_memory().available,
                daemon_memory_bytes=self._process.memory_info().rss,
            )
        except (psutil.Error, OSError):
            return HostLoad()
