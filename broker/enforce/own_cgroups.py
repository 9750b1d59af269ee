"""The cgroups into which `hive-qos run` puts programs, as long as a daemon runs: made at its start, where this host
can, and removed at its end."""

from __future__ import annotations

from broker.enforce import cgroups
from broker.enforce.interfaces import ClassCgroups
from broker.events.log import Log
from hive_qos.errors import HiveError


class OwnCgroups:
    """Those of one daemon. `mount` is where they are, None where there are none.

    Args:
        wanted: whether this host can classify by cgroup at all.
    """

    def __init__(self, *, wanted: bool, log: Log) -> None:
        self._wanted, self._log = wanted, log
        self._paths = cgroups.class_paths()
        self.mount: str | None = None

    @property
    def paths(self) -> ClassCgroups:
        """Each class with its cgroup."""
        return self._paths if self.mount is not None else ()

    def make(self) -> None:
        """Make them; where that fails the log has the reason, and all else works."""
        mount = cgroups.mount_point()
        if not self._wanted or mount is None:
            self._log.warning("cgroups-unavailable", error="no cgroup v2 with BPF")
            return
        try:
            cgroups.make(mount)
        except HiveError as problem:
            self._log.warning("cgroups-unavailable", error=str(problem))
            return
        self.mount = mount

    def remove(self) -> tuple[str, ...]:
        """Remove those that are empty. Returns what went wrong."""
        if self.mount is None:
            return ()
        try:
            busy = cgroups.remove(self.mount)
        except (HiveError, OSError) as problem:
            return (f"cgroups: {problem}",)
        if busy:
            self._log.info("cgroups-busy", cgroups=",".join(busy))
        return ()
