"""`[probe]` of `broker.toml`: hosts to measure delay to. Without the section nothing is probed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from broker.policy.reader import Reader
from broker.policy.types import ProbePolicy
from hive_qos.units import parse_duration_s

KEYS = ("targets", "interval")
TARGETS_MAX = 8
INTERVAL_S, INTERVAL_S_MIN, INTERVAL_S_MAX = 0.2, 0.1, 10.0
"""Five a second: a queue elsewhere is seen in three samples of four within 0.8 s (`broker.law.capacity.quorum`). At
most ten a second to eight hosts: 80 packets, 60 kbit/s."""


def read_probe(reader: Reader, raw: Mapping[str, Any]) -> ProbePolicy:
    """Read the section; each mistake is told and counts as left out."""
    interval_s = reader.parsed(raw, "interval", parse_duration_s, prefix="probe.", default=INTERVAL_S)
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        reader.problem("probe.interval", raw.get("interval"), 'write between "100 ms" and "10 s"')
        interval_s = INTERVAL_S
    targets = raw.get("targets")
    if not isinstance(targets, list) or not 1 <= len(targets) <= TARGETS_MAX:
        reader.problem("probe.targets", targets, f'list 1 to {TARGETS_MAX} addresses, e.g. ["10.0.0.1", "10.0.0.9"]')
        targets = []
    found: list[str] = []
    for number, target in enumerate(targets):
        address = _address(target)
        if address is None:
            reason = "write the address of one host, IPv4 or IPv6, that answers ICMP echoes; names are not looked up"
            reader.problem(f"probe.targets[{number}]", target, reason)
        elif address not in found:
            found.append(address)
    return ProbePolicy(targets=tuple(found), interval_s=interval_s)


def _address(value: object) -> str | None:
    """The address written plainly; None for one that is no host's, or is this one's own."""
    try:
        address = ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if address is None or address.is_multicast or address.is_unspecified or address.is_loopback:
        return None
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address.scope_id is not None):
        return None
    return None if str(address) == "255.255.255.255" else str(address)
