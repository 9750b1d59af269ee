"""The `static` phase: a fixed HTB tree with priority, as a careful administrator writes it with tc, once.

He knows that the uplink is 20 Mbit/s, shapes to 97 % of it so that the queue stays in his host, gives training first
call on everything and storage a guarantee of 20 %, and lets either borrow what the other leaves.
"""

from __future__ import annotations

from tools.demo.figures import SHAPED_SHARE
from tools.demo.storage import PORT
from tools.lab import Lab

STORAGE_SHARE = 0.2
"""The guarantee that the broker's configuration gives storage, too."""

LEAF_BYTES = 256 * 1024
"""100 ms at 20 Mbit/s for each class. With 32 KiB, TCP lost a whole window in its own host's queue and crawled for nine
seconds at one segment a timeout: nobody careful leaves it at that."""


def commands(interface: str, *, rate_bits_per_s: int) -> list[list[str]]:
    """The tc command lines, in order."""
    ceiling = int(rate_bits_per_s * SHAPED_SHARE)
    storage = int(ceiling * STORAGE_SHARE)
    tree = ["tc", "class", "add", "dev", interface, "parent"]
    burst = ["burst", "16k", "cburst", "16k"]
    rules = [
        ["tc", "qdisc", "replace", "dev", interface, "root", "handle", "1:", "htb", "default", "10"],
        [*tree, "1:", "classid", "1:1", "htb", "rate", f"{ceiling}bit", "ceil", f"{ceiling}bit", *burst],
    ]
    for minor, rate, priority in (("10", ceiling - storage, "0"), ("20", storage, "1")):
        htb = ["htb", "rate", f"{rate}bit", "ceil", f"{ceiling}bit", "prio", priority, "quantum", "3000"]
        rules.append([*tree, "1:1", "classid", f"1:{minor}", *htb, *burst])
        leaf = ["parent", f"1:{minor}", "handle", f"{minor}:", "bfifo", "limit", str(LEAF_BYTES)]
        rules.append(["tc", "qdisc", "add", "dev", interface, *leaf])
    rsync = ["match", "ip", "protocol", "6", "0xff", "match", "ip", "dport", str(PORT), "0xffff"]
    to_storage = ["u32", *rsync, "flowid", "1:20"]
    rules.append(["tc", "filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "prio", "1", *to_storage])
    return rules


def install(lab: Lab, host: str, *, interface: str, rate_bits_per_s: int) -> None:
    """Put the tree on a host's device."""
    for command in commands(interface, rate_bits_per_s=rate_bits_per_s):
        lab[host].run(command, timeout_s=10.0)


def remove(lab: Lab, host: str, *, interface: str) -> None:
    """Take it off again; harmless where there is none."""
    lab[host].run(["tc", "qdisc", "del", "dev", interface, "root"], check=False, timeout_s=10.0)
