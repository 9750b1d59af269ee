"""Filters by what packets say: one rule for IPv4 and IPv6, in words of 32 bits from the network header on. Pure.

What differs between the two is where a field stands (RFC 791, RFC 8200), and `_HEADERS` has that. The ports of IPv4 are
looked for only in headers without options and in first fragments, those of IPv6 only directly behind the fixed header.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from shaping.model.names import LEAF_MINOR
from shaping.model.shapes import Arrival, Rule
from shaping.model.tree import FilterSpec

RULES_MAX = 64
"""Ports, DSCP and addresses of one interface. A port is up to eight u32 filters, an address two, a DSCP two, which
unmarked packets walk one by one. Sockets at which packets arrive are one each, and whoever names them counts them."""

Family: TypeAlias = Literal[4, 6]
Match: TypeAlias = tuple[int, int, int]
"""Offset of a word in bytes, mask, value."""


class _Header(NamedTuple):
    """The fields' positions: bytes from the header's begin, and how far a field is from its word's last bit."""

    source: int
    destination: int
    ports: int
    protocol: int
    protocol_shift: int
    dscp_shift: int  # the codepoint is in the first word
    with_ports: tuple[Match, ...]  # what has to hold for ports to be there


_HEADERS: Mapping[Family, _Header] = {
    # A first byte of 0x45 means version 4 and no options; the low 13 bits of bytes 6 and 7 are the fragment's offset.
    4: _Header(12, 16, 20, 8, 16, 18, ((0, 0x0F000000, 0x05000000), (4, 0x00001FFF, 0))),
    6: _Header(8, 24, 40, 4, 8, 22, ()),
}
_WORD = 0xFFFFFFFF  # all bits of a word have to match
_PREFERENCE_FIRST = 100  # whoever wants to be asked before ours has room
_PROTOCOLS = {"tcp": 6, "udp": 17}  # IANA, Protocol Numbers


def packet_filters(rules: tuple[Rule, ...], minors: Mapping[str, int]) -> tuple[FilterSpec, ...]:
    """Filters for the rules on what packets say, in their order; those on cgroups and users are left out.

    Args:
        minors: where a target's packets go.

    Raises:
        ValueError: too many, or a rule that cannot be.
    """
    check_rules(rules)
    found = [(*match, minors[rule.target]) for rule in rules for match in _matches_of(rule)]
    return tuple(FilterSpec(_PREFERENCE_FIRST + number, *wanted) for number, wanted in enumerate(found))


def check_rules(rules: tuple[Rule, ...]) -> None:
    """Raise ValueError for a rule that cannot be, or too many on what packets say."""
    for rule in rules:
        check_rule(rule)
    of_packets = [rule for rule in rules if (rule.port, rule.dscp, rule.address) != (None, None, None)]
    if len(of_packets) > RULES_MAX:
        raise ValueError(f"more than {RULES_MAX} rules on what packets say; put the programs into a cgroup instead")


def check_rule(rule: Rule) -> None:
    """Raise ValueError for a rule with an unknown target, none or two matches, or a match outside its range."""
    names = ("port", "dscp", "uid", "cgroup", "address", "arrives")
    matches = [name for name in names if getattr(rule, name) is not None]
    if len(matches) != 1:
        raise ValueError(f"a rule has exactly one of {', '.join(names)}; this one has {matches or 'none'}")
    if rule.target not in LEAF_MINOR:
        raise ValueError(f"unknown target {rule.target!r}; one of {', '.join(LEAF_MINOR)}")
    if rule.port is not None and not 1 <= rule.port <= 65535:
        raise ValueError(f"port {rule.port} is not in 1..65535")
    if rule.dscp is not None and not 0 <= rule.dscp <= 63:
        raise ValueError(f"dscp {rule.dscp} is not in 0..63")
    if rule.address is not None:
        ipaddress.ip_network(rule.address)  # says what is wrong
    if rule.uid is not None and not 0 <= rule.uid < 2**32 - 1:
        raise ValueError(f"uid {rule.uid} is not a user's number")
    if rule.cgroup is not None and (not rule.cgroup.isprintable() or ".." in rule.cgroup.split("/")):
        raise ValueError(f"cgroup {rule.cgroup!r} has a control character or .. in it")


def destination_match(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[Match, ...]:
    """Packets to one address."""
    return _words(_HEADERS[address.version].destination, address.packed)


def _matches_of(rule: Rule) -> list[tuple[Family, tuple[Match, ...]]]:
    """What each filter of a rule compares; none for a rule on cgroups or users."""
    if rule.port is not None:
        ends = ((0xFFFF0000, rule.port << 16), (0x0000FFFF, rule.port))  # source, destination
        return [
            (family, _transport(family, protocol, mask, value))
            for protocol in _PROTOCOLS
            for mask, value in ends
            for family in _HEADERS
        ]
    if rule.dscp is not None:
        shifts = [(family, header.dscp_shift) for family, header in _HEADERS.items()]
        return [(family, ((0, 0x3F << shift, rule.dscp << shift),)) for family, shift in shifts]
    if rule.address is not None:
        network = ipaddress.ip_network(rule.address)
        header = _HEADERS[network.version]
        return [
            (network.version, _words(start, network.network_address.packed, network.netmask.packed))
            for start in (header.source, header.destination)
        ]
    return [_arrival(rule.arrives)] if rule.arrives is not None else []


def _arrival(arrival: Arrival) -> tuple[Family, tuple[Match, ...]]:
    """Where to, and where from if that is given."""
    address = ipaddress.ip_address(arrival.address)
    words, mask, ports = destination_match(address), 0x0000FFFF, arrival.port
    if arrival.remote is not None:
        source = _words(_HEADERS[address.version].source, ipaddress.ip_address(arrival.remote[0]).packed)
        words, mask, ports = (*source, *words), _WORD, arrival.remote[1] << 16 | ports
    return address.version, tuple(sorted((*words, *_transport(address.version, arrival.protocol, mask, ports))))


def _transport(family: Family, protocol: str, mask: int, ports: int) -> tuple[Match, ...]:
    """A protocol and its ports: the source's in the upper half of their word."""
    header = _HEADERS[family]
    named = (header.protocol, 0xFF << header.protocol_shift, _PROTOCOLS[protocol] << header.protocol_shift)
    return (*header.with_ports, named, (header.ports, mask, ports))


def _words(start: int, value: bytes, mask: bytes | None = None) -> tuple[Match, ...]:
    """An address or network as words; without those that its prefix does not reach, but for the first."""
    mask = mask or b"\xff" * len(value)
    words = [
        (start + at, int.from_bytes(mask[at : at + 4], "big"), int.from_bytes(value[at : at + 4], "big"))
        for at in range(0, len(value), 4)
    ]
    return tuple([word for word in words if word[1]] or words[:1])
