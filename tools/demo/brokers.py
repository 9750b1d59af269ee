"""The `brokered` phase: the real daemon, as root, in both training hosts, with a configuration file each.

The file says what an operator knows: the interface, the uplink's nominal rate, what storage is guaranteed, and which
port replication uses. Nobody tells the daemon that the link has lost half its rate.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.demo.storage import PORT
from tools.measure.brokers import Seat, daemon_section


def configuration(*, interface: str, rate_bits_per_s: int, group: str) -> Callable[[Seat], str]:
    """A host's broker.toml, as a function of where its broker sits."""

    def text(seat: Seat) -> str:
        return f"""\
version = 1

{daemon_section(seat, group=group)}
[[interface]]
name = "{interface}"
egress = "{rate_bits_per_s // 1000} kbit/s"
ingress = "off"

[class.storage]
guarantee = "20 %"
guarantee_window = "60 s"
match = [{{ port = {PORT} }}]
"""

    return text
