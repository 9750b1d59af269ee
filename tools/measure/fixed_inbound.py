"""A fixed HTB tree for what arrives, as an administrator writes it with tc: on an IFB, at 92 % of the link.

What is dropped there has taken its share of the link already, so that the tree has to stay further below it than one on
the way out, for senders to slow down before the queue in front of the link is full.
"""

from __future__ import annotations

from tools.lab import Lab
from tools.measure.fixed import FixedTree

SHAPED_SHARE = 0.92
DEVICE = "fixed-ifb"
ALL = ["u32", "match", "u32", "0", "0"]


def tree(*, rate_bits_per_s: int, storage_share: float, borrowing: bool, port: int) -> FixedTree:
    """What he decides, of the link's rate."""
    return FixedTree(
        rate_bits_per_s=rate_bits_per_s,
        storage_share=storage_share,
        borrowing=borrowing,
        port=port,
        shaped_share=SHAPED_SHARE,
    )


def install(tree: FixedTree, lab: Lab, host: str, *, interface: str) -> None:
    """Make the IFB and its tree; only then lead there what arrives: until then it arrives as ever."""
    lead = ["action", "mirred", "egress", "redirect", "dev", DEVICE]
    hook = ["tc", "filter", "add", "dev", interface, "parent", "ffff:", "protocol", "all", "prio", "1"]
    for command in (
        ["ip", "link", "add", DEVICE, "type", "ifb"],
        ["ip", "link", "set", DEVICE, "up"],
        *tree.commands(DEVICE),
        ["tc", "qdisc", "add", "dev", interface, "handle", "ffff:", "ingress"],
        [*hook, *ALL, *lead],
    ):
        lab[host].run(command, timeout_s=10.0)


def remove(lab: Lab, host: str, *, interface: str) -> None:
    """The redirection first: with its IFB gone it would lose all that arrives. Harmless where there is none."""
    for command in (
        ["tc", "qdisc", "del", "dev", interface, "ingress"],
        ["ip", "link", "del", DEVICE],
    ):
        lab[host].run(command, check=False, timeout_s=10.0)
