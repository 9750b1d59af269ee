"""The kernel side of the broker: a wanted shape becomes an HTB tree, and what is ours can always be taken away again.

`shaping.clear` takes it away; everything else is in the modules, so that importing a value loads neither pyroute2 nor
ctypes.
"""

from __future__ import annotations

from pathlib import Path

STATE_DIRECTORY = Path("/var/lib/hive-qos")
"""Where the journal is kept (design.md, fixed names)."""


def clear(state_directory: Path = STATE_DIRECTORY) -> tuple[str, ...]:
    """Remove all that is ours from this network namespace and put back what was there before us.

    Trees (found by their handle), BPF programs (found by their name) and journal entries; for `hive-qos clear`, when no
    broker runs. Call it outside of any running event loop.

    Returns:
        Sentences on what was done and on what could not be put back; empty when nothing of ours was there.

    Raises:
        PrivilegeError: without CAP_NET_ADMIN.
        ShapingError: the kernel refused, or a journal entry cannot be read.
    """
    from shaping.classify.cgroup import SocketClassifier, find_mount
    from shaping.journal import Journal
    from shaping.kernel import RealKernel
    from shaping.shaper import Shaper

    mount_point = find_mount()
    classifier = SocketClassifier(mount_point=mount_point) if mount_point is not None else None
    with Shaper(RealKernel(), Journal(state_directory), classifier=classifier) as shaper:
        return shaper.clear()
