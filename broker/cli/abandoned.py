"""Opens the ceilings that a broker left in the kernel when it was killed together with its watchdog.

The watchdog opens every ceiling when the daemon dies. systemd runs it once more where it was killed, too. Without
either, a class would stay limited for good: so the next command looks, opens and reports it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from broker.process.namespace_claim import claims
from hive_qos.errors import HiveError
from hive_qos.netlink import NetlinkSocket
from shaping.failsafe import journalled_lines, open_ceilings, own_roots, stop_redirecting
from shaping.journal import Journal
from shaping.model.names import is_ours


def open_abandoned(state_directory: Path | None = None) -> str | None:
    """Open the ceilings of a tree that no broker and no watchdog looks after. For a command that finds no broker.

    Args:
        state_directory: of the broker: its journal has the lines' rates. None takes the one of the configuration.

    Returns:
        What was found and done, or what to do, in one line; None where there is nothing of ours.
    """
    try:
        with contextlib.closing(NetlinkSocket()) as tc:
            found = {socket.if_indextoname(index): index for index in own_roots(tc)}
            # An IFB holds nobody back: the watchdog, or we here, take what leads to it away.
            roots = {name: index for name, index in found.items() if not is_ours(name)}
            if not roots:
                return None
            if claims():
                return None  # a broker runs, or its watchdog
            names = ", ".join(sorted(roots))
            if os.geteuid() != 0:
                return f"a broker that has ended may hold back traffic on {names}; `sudo hive-qos status` opens that"
            stop_redirecting(tc)
            journal = Journal(state_directory or _configured())
            changed = open_ceilings(tc, dict.fromkeys(roots.values()) | journalled_lines(journal))
    except (HiveError, OSError) as problem:
        return f"what a broker has left here cannot be looked at: {problem}"
    if not changed:
        return f"a broker that has ended has left its classes on {names}, all open; `hive-qos clear` removes them"
    return f"a broker that was killed held back traffic on {names}; nobody is held back any more ({changed} opened)"


def _configured() -> Path:
    """Read where the journal is. Imported here: most hosts without a broker have nothing of ours to look for."""
    from broker.cli.configuration import DEFAULT_CONFIG, state_directory

    return state_directory(DEFAULT_CONFIG)
