"""A fixed HTB tree as an administrator writes it with tc, once: two classes, and storage found by its port.

He knows what the uplink carries and shapes to 97 % of it, so that the queue stays in his host.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.lab import Lab

SHAPED_SHARE = 0.97
"""Of the link: what a shaper gives out, so that the queue is where the priorities are. The broker's headroom is as
large, but stated for itself: this one measures every phase, most without a broker, and must not move with theirs."""

LEAF_BYTES_MIN, LEAF_S = 256 * 1024, 0.05
"""Of each class. With 32 KiB at 20 Mbit/s, TCP lost a whole window in its own host's queue and crawled for nine seconds
at one segment a timeout: nobody careful leaves it at that."""

BUCKET_BYTES_MIN, BUCKET_S = 16 * 1024, 0.002
"""What a class may send at once: ten frames, and what a timer that fires 2 ms late would cost it."""


@dataclass(frozen=True, kw_only=True)
class FixedTree:
    """What he decides.

    Args:
        rate_bits_per_s: what he takes the uplink for.
        storage_share: rate of storage's class, of the shaped rate; training's class has the rest.
        borrowing: whether each may have what the other leaves.
        port: of storage, at either end.
        shaped_share: of the link's rate, that he gives out.
    """

    rate_bits_per_s: int
    storage_share: float
    borrowing: bool
    port: int
    shaped_share: float = SHAPED_SHARE

    def commands(self, interface: str) -> list[list[str]]:
        """The tc command lines, in order."""
        ceiling = int(self.rate_bits_per_s * self.shaped_share)
        storage = int(ceiling * self.storage_share)
        tree = ["tc", "class", "add", "dev", interface, "parent"]
        bucket = str(max(BUCKET_BYTES_MIN, int(self.rate_bits_per_s * BUCKET_S / 8)))
        burst = ["burst", bucket, "cburst", bucket]
        rules = [
            ["tc", "qdisc", "replace", "dev", interface, "root", "handle", "1:", "htb", "default", "10"],
            [*tree, "1:", "classid", "1:1", "htb", "rate", f"{ceiling}bit", "ceil", f"{ceiling}bit", *burst],
        ]
        leaf_bytes = max(LEAF_BYTES_MIN, int(self.rate_bits_per_s * LEAF_S / 8))
        for minor, rate, priority in (("10", ceiling - storage, "0"), ("20", storage, "1")):
            ceil = ceiling if self.borrowing else rate
            htb = ["htb", "rate", f"{rate}bit", "ceil", f"{ceil}bit", "prio", priority, "quantum", "3000"]
            rules.append([*tree, "1:1", "classid", f"1:{minor}", *htb, *burst])
            leaf = ["parent", f"1:{minor}", "handle", f"{minor}:", "bfifo", "limit", str(leaf_bytes)]
            rules.append(["tc", "qdisc", "add", "dev", interface, *leaf])
        for end in ("sport", "dport"):
            match = ["match", "ip", "protocol", "6", "0xff", "match", "ip", end, str(self.port), "0xffff"]
            to_storage = ["u32", *match, "flowid", "1:20"]
            rules.append(
                ["tc", "filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "prio", "1", *to_storage]
            )
        return rules

    def install(self, lab: Lab, host: str, *, interface: str) -> None:
        """Put the tree on a host's device."""
        for command in self.commands(interface):
            lab[host].run(command, timeout_s=10.0)


def remove(lab: Lab, host: str, *, interface: str) -> None:
    """Take it off again; harmless where there is none."""
    lab[host].run(["tc", "qdisc", "del", "dev", interface, "root"], check=False, timeout_s=10.0)
