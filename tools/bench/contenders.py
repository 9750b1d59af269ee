"""Who competes, and whether they are here."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass
from typing import Literal

from transport.engine import NATIVE_MODULE

Kind = Literal["engine", "gloo", "iperf", "tcp"]
ORDINARY_BYTES, LARGE_BYTES = 1452, 8900
"""UDP payload of a packet: what fits Ethernet, and what fits jumbo frames."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to move bytes.

    Args:
        name: in the records and tables.
        kind: `engine` (ours, used through its interface), `gloo` (send and receive), `iperf` (iperf3 over TCP), `tcp`
            (plain sockets).
        engine: which of ours, for `engine`.
        congestion: its congestion control; for iperf, the kernel's.
        datagram_bytes: UDP payload of a packet; aioquic has 1200.
    """

    name: str
    kind: Kind
    engine: str = ""
    congestion: str = "auto"
    datagram_bytes: int = ORDINARY_BYTES

    def missing(self) -> str:
        """Why it cannot run here, "" where it can."""
        return _missing(self.kind, self.engine)


@functools.cache
def _missing(kind: Kind, engine: str) -> str:
    if kind == "iperf" and shutil.which("iperf3") is None:
        return "iperf3 is not installed: make bench installs it, as root"
    if kind == "gloo" and importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'hive-qos[torch]'"
    if engine == "native" and importlib.util.find_spec(NATIVE_MODULE) is None:
        return "the native engine is not built here"
    return ""


def versions() -> dict[str, str]:
    """What the figures depend on."""
    found = {}
    for name in ("hive-qos", "aioquic", "torch", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "-"
    return found


NATIVE = Contender(name="native", kind="engine", engine="native")
AIOQUIC = Contender(name="aioquic", kind="engine", engine="aioquic")
GLOO = Contender(name="gloo", kind="gloo")
IPERF = Contender(name="iperf3", kind="iperf", congestion="cubic")
TCP = Contender(name="tcp", kind="tcp")

LOOPBACK = (
    NATIVE,
    AIOQUIC,
    GLOO,
    IPERF,
    Contender(name="native 8900", kind="engine", engine="native", datagram_bytes=LARGE_BYTES),
)
LAN = (NATIVE, AIOQUIC, GLOO, IPERF)
LOSS = (
    NATIVE,
    Contender(name="native bbr", kind="engine", engine="native", congestion="bbr"),
    AIOQUIC,
    Contender(name="iperf3 cubic", kind="iperf", congestion="cubic"),
    Contender(name="iperf3 bbr", kind="iperf", congestion="bbr"),
)
LATENCY = (NATIVE, AIOQUIC, GLOO, TCP)
MEMORY = (NATIVE, AIOQUIC, GLOO)
CONGESTION = (
    NATIVE,
    Contender(name="native bbr", kind="engine", engine="native", congestion="bbr"),
    Contender(name="native cubic", kind="engine", engine="native", congestion="cubic"),
    AIOQUIC,
)
