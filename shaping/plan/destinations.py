"""Which address has which leaf of storage, and the filters that lead there. Pure.

The filters hang at storage's inner node (ffe0:30), whom sockets' marks and rules name. HTB asks them for each packet of
the class and for no other:

    1000 to 1007  one for each address that has a leaf: its whole destination address
    2000          everything else, to the default leaf: also what is no IP, and IP behind a VLAN tag, which at the
                  parent of a VLAN device is no IP to a filter

The kernel is the only one who remembers which address has which leaf: its filters say so, after a crash, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from shaping.model.names import DESTINATION_MINOR, HELD_NAME, INNER_MINOR, LEAF_MINOR
from shaping.model.tree import FilterSpec, Tree
from shaping.plan.packet_filters import destination_match

_PREFERENCE_FIRST = 1_000  # one for each address, clear of those of the root (packet_filters.py)
_PREFERENCE_REST = 2_000  # behind all of those


def canonical(address: str) -> str:
    """One spelling for one destination on the wire: as `ipaddress` writes it, IPv4 also where it was mapped into IPv6.

    Raises:
        ValueError: it is no literal address, or one that no packet has as its destination.
    """
    found = _parsed(address)
    if found.is_unspecified:
        raise ValueError(f"destination {address} is no address of anybody")
    return str(found)


def leaf_of_address(tree: Tree | None) -> dict[str, int]:
    """Addresses that have a leaf in a tree, in their canonical spelling, and the leaf's minor."""
    if tree is None:
        return {}
    return {
        _address_of(rule): rule.target_minor
        for rule in tree.filters
        if rule.parent_minor == INNER_MINOR[HELD_NAME] and rule.target_minor in DESTINATION_MINOR
    }


def assigned(addresses: Iterable[str], before: Tree | None) -> dict[str, int]:
    """Give each address a leaf: the one that it has, else one that nobody had, else one that becomes free now.

    Args:
        addresses: canonical, at most as many as there are leaves.
    """
    had = leaf_of_address(before)
    wanted = list(addresses)
    found = {address: had[address] for address in wanted if address in had}
    taken = {*found.values()}
    free = sorted((minor for minor in DESTINATION_MINOR if minor not in taken), key=lambda minor: minor in had.values())
    for address in wanted:
        if address not in found:
            found[address] = free.pop(0)
    return found


def destination_filters(leaves: Mapping[str, int]) -> tuple[FilterSpec, ...]:
    """The filters at storage's inner node, by preference."""
    parent = INNER_MINOR[HELD_NAME]
    single = [
        FilterSpec(
            preference=_PREFERENCE_FIRST + DESTINATION_MINOR.index(minor),
            family=_parsed(address).version,
            matches=destination_match(_parsed(address)),
            target_minor=minor,
            parent_minor=parent,
        )
        for address, minor in leaves.items()
    ]
    return (
        *sorted(single, key=lambda rule: rule.preference),
        FilterSpec(_PREFERENCE_REST, None, ((0, 0, 0),), LEAF_MINOR[HELD_NAME], parent),
    )


def _parsed(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        return found.ipv4_mapped or IPv6Address(found.packed)  # without a scope, which no packet carries
    return found


def _address_of(rule: FilterSpec) -> str:
    packed = b"".join(struct.pack(">I", value) for _, _, value in rule.matches)
    return str(ip_address(packed))
