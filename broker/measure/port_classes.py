"""In which class HTB puts the packets of a connection, by the rules of a policy. Pure.

The kernel asks the socket's priority first, then the filters in the order of the rules. So rules on cgroups and users
do not count here: they work through the priority, and a socket that has none is not in their class (yet).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

from broker.measure.tcp_diag import TcpConnection, UdpSocket
from broker.policy.known_programs import rules_of_class
from broker.policy.types import Policy

_ADDRESSES_REMEMBERED = 4096
"""More than a busy host's peers; an entry is a hundred bytes, and one that falls out costs a look at the rules."""


class PortClasses:
    """The rules of one policy, laid out so that a connection costs a few look-ups however many rules there are.

    Args:
        class_of_priority: the class that a socket's priority means to HTB.
    """

    def __init__(self, policy: Policy, class_of_priority: Mapping[int, str]) -> None:
        self.policy, self._class_of_priority = policy, class_of_priority
        self._ports: dict[int, tuple[int, str]] = {}
        self._dscps: dict[int, tuple[int, str]] = {}
        self._networks: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, tuple[int, str]]] = []
        rules = [(rule, entry.name) for entry in policy.classes for rule in rules_of_class(entry)]
        for number, (rule, name) in enumerate(rules):
            if rule.port is not None:
                self._ports.setdefault(rule.port, (number, name))
            if rule.dscp is not None:
                self._dscps.setdefault(rule.dscp, (number, name))
            if rule.address is not None:
                self._networks.append((ipaddress.ip_network(rule.address), (number, name)))
        self._of_address = lru_cache(maxsize=_ADDRESSES_REMEMBERED)(self._first_network)

    def class_of(self, connection: TcpConnection | UdpSocket) -> str:
        """The class of `CLASS_NAMES`; `other` where nothing matches."""
        marked = self._class_of_priority.get(connection.classid)
        if marked is not None:
            return marked
        (local, local_port), (remote, remote_port) = connection.local, connection.remote
        first = min(
            self._ports.get(local_port, _NONE),
            self._ports.get(remote_port, _NONE),
            self._dscps.get(connection.dscp, _NONE),
        )
        if self._networks:
            first = min(first, self._of_address(local), self._of_address(remote))
        return first[1]

    def _first_network(self, address: str) -> tuple[int, str]:
        literal = ipaddress.ip_address(address)
        return min((rule for network, rule in self._networks if literal in network), default=_NONE)


_NONE = (1 << 30, "other")
"""After every rule."""
