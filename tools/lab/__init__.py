"""Hosts, routers and links on one machine, in network namespaces, gone without a trace when the lab ends.

    from tools.lab import Lab

    with Lab("demo") as lab:
        for name in ("a", "b", "s"):
            lab.host(name)
        lab.router("r")
        for name in ("a", "b", "s"):
            lab.link(name, "r", rate_bits_per_s=40_000_000, delay_s=0.002)
        lab.up()
        lab["a"].run(["ping", "-c", "1", "b"])            # names resolve in every host
        server = lab["b"].popen(["iperf3", "-s", "-1"], user="nobody")
        lab.links["b-r"].set_rate(20_000_000)              # while traffic flows
        with lab["a"].enter(): ...                         # this thread's new sockets are a's

`with Lab.from_file("tools/lab/two-hosts.toml") as lab:` is up on entry. Leaving the block, an exception, Ctrl-C,
SIGTERM or the owner's death takes down everything: namespaces, qdiscs, the relay, and every process started in it.
Rates, delay and loss are enforced outside the hosts: a host's own device keeps whatever qdisc its broker puts there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.lab.lab import Host, Lab, LabError, Link, LinkCounters
    from tools.lab.model import Description, LinkSpec, NodeSpec

__all__ = ["Description", "Host", "Lab", "LabError", "Link", "LinkCounters", "LinkSpec", "NodeSpec"]

_MODEL = ("Description", "LinkSpec", "NodeSpec")


def __getattr__(name: str) -> object:
    """Load what is asked for: the command has to be able to say how it takes Ctrl-C before anything large is loaded."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tools.lab.model" if name in _MODEL else "tools.lab.lab"), name)
