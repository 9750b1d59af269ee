"""Addresses as one text each, so that they compare equal wherever they come from."""

from __future__ import annotations

import ipaddress


def plain(address: str) -> str:
    """Give a literal address without a zone and without IPv6 around IPv4: "::ffff:10.0.0.1" is "10.0.0.1".

    Raises:
        ValueError: not a literal address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def is_askable(address: str) -> bool:
    """Whether a plain address names one host: not a group, nobody, or a neighbour on an unknown link."""
    found = ipaddress.ip_address(address)
    return not (found.is_multicast or found.is_unspecified or found.is_link_local)


def plain_host(called: str) -> str | None:
    """The address of a peer called by address and port ("10.0.0.1:4710"); None for one that has a name by now."""
    try:
        return plain(called.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
