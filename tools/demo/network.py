"""The demonstration's network: two training hosts and a storage host that meet in a router, and a second link.

a ----20 Mbit/s---- r ----20 Mbit/s---- b        training: a <-> b
|                   |
|                   +-----20 Mbit/s---- s        storage: a -> s, over a's one uplink
+---------20 Mbit/s, "other"----------- s        for the condition `other-link`

The delay is on b's link, so that every packet of training has it, both ways. Where the kernel has no netem it is made
by a process that takes CPU for each packet; storage's packets do not pass it, or the CPU that they cost there would
be taken from training, and an artefact of the lab would look like an effect of the link.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo.settings import Settings
from tools.lab import Lab

DELAYED = "b-r"

SENT_BYTES = 2
"""Column of the sampler's interface counters."""


@dataclass(frozen=True)
class Network:
    """Names of what the director needs in a lab that is up."""

    lab: Lab
    uplink: str
    storage_address: str
    other_address: str

    def topology(self) -> dict[str, list[object]]:
        """Say which counter is which: host, interface, column. What the router sends has crossed a's link."""
        router = self.lab["r"]
        return {
            "compute": ["r", router.interface_on("b"), SENT_BYTES],
            "storage": ["r", router.interface_on("s"), SENT_BYTES],
        }


def declare(lab: Lab, settings: Settings) -> Network:
    """Declare hosts and links; the caller brings the lab up."""
    for name in ("a", "b", "s"):
        # What most hosts use, whatever this machine's default is.
        lab.host(name, congestion="cubic")
    lab.router("r")
    ends = {"uplink": ("a", "r"), "b-r": ("b", "r"), "s-r": ("s", "r"), "other": ("a", "s")}
    for name, (first, second) in ends.items():
        lab.link(
            first,
            second,
            name=name,
            rate_bits_per_s=settings.rate_bits_per_s,
            delay_s=settings.delay_s if name == DELAYED else 0.0,
            buffer_s=settings.buffer_s,
        )
    return Network(
        lab=lab,
        uplink="uplink",
        storage_address=lab["s"].address_on("s-r"),
        other_address=lab["s"].address_on("other"),
    )
