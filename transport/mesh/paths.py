"""Which ways lead from this rank to another one, the likely ones first. Pure.

A rank listens at several locations: at most one IPv4 and one IPv6 address of each interface. A path is one of our own
locations and one of the peer's, of the same family. Paths are tried one after the other, as in Happy Eyeballs (RFC
8305), so that an address which leads nowhere costs a quarter of a second.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from transport.engine.base import Address

LOCATIONS_MAX = 8
"""Of one rank: four interfaces with both families."""
PATHS_MAX = 16
"""To one peer: at a quarter of a second each, the last is tried after 4 s."""
TEXT_BYTES_MAX = 128


@dataclass(frozen=True)
class Location:
    """Where a rank listens. `interface` is a number within the rank: locations that share it share a link."""

    interface: int
    address: str
    port: int
    bulk_port: int

    def of(self, *, bulk: bool) -> Address:
        return self.address, self.bulk_port if bulk else self.port


@dataclass(frozen=True)
class Path:
    """From one of our locations, by its place in our list, to one of a peer's."""

    local: int
    remote: Location


Link: TypeAlias = tuple[int, int]
"""The interfaces of a path, ours and the peer's."""


def paths_between(own: Sequence[Location], theirs: Sequence[Location]) -> tuple[Path, ...]:
    """Every path to a peer, the likely ones first.

    That is the first location of both, then those with the longest common prefix (RFC 6724, rule 9). An address that is
    one of ours too (a bridge of containers, loopback) counts only as a peer's first: the peer is on this host then.
    """
    ours = {one.address for one in own}
    paths = [
        Path(number, remote)
        for number, local in enumerate(own)
        for place, remote in enumerate(theirs)
        if (":" in local.address) == (":" in remote.address) and (place == 0 or remote.address not in ours)
    ]
    first = theirs[0]

    def likely(path: Path) -> tuple[bool, int]:
        return (path.local, path.remote) != (0, first), differing_bits(own[path.local].address, path.remote.address)

    return tuple(sorted(paths, key=likely)[:PATHS_MAX])


def is_spare(link: Link, *, in_use: Collection[Link], own: int, theirs: int) -> bool:
    """Whether a path is another link beside those in use: of the side with more interfaces, it takes one that none has.

    Args:
        own, theirs: how many interfaces each side has.
    """
    free_here = link[0] not in {one[0] for one in in_use}
    free_there = link[1] not in {one[1] for one in in_use}
    return (free_here or own < theirs) and (free_there or theirs < own)


def is_usable(address: str) -> bool:
    """Whether hosts beyond the next router can send to an address."""
    return not (is_group_or_none(address) or ipaddress.ip_address(address.partition("%")[0]).is_link_local)


def is_group_or_none(address: str) -> bool:
    """Whether an address is not that of one host: a multicast or the unspecified one."""
    literal = ipaddress.ip_address(address.partition("%")[0])
    return literal.is_multicast or literal.is_unspecified


def differing_bits(one: str, other: str) -> int:
    """Behind the common prefix."""
    first, second = (int(ipaddress.ip_address(text.partition("%")[0])) for text in (one, other))
    return (first ^ second).bit_length()


def plain_locations(locations: Sequence[Location]) -> list[dict[str, object]]:
    """As `read_locations` reads them."""
    return [
        {"address": one.address, "interface": one.interface, "port": one.port, "bulk_port": one.bulk_port}
        for one in locations
    ]


def read_locations(plain: object) -> tuple[Location, ...]:
    """Where a rank says that it listens.

    Raises:
        ValueError, KeyError: not 1 to LOCATIONS_MAX of them, or one that cannot be dialled; says which.
    """
    if not isinstance(plain, list) or not 1 <= len(plain) <= LOCATIONS_MAX:
        raise ValueError(f"addresses are not a list of 1 to {LOCATIONS_MAX}")
    locations: list[Location] = []
    for one in plain:
        if not isinstance(one, dict):
            raise ValueError(f"{one!r:.64} is no address")
        address = str(ipaddress.ip_address(checked_text(one, "address")))
        if is_group_or_none(address):
            raise ValueError(f"{address} is not the address of a host")
        numbers = [checked_integer(one, key, most, least) for key, least, most in _NUMBERS]
        locations.append(Location(numbers[0], address, numbers[1], numbers[2]))
    if len({one.address for one in locations}) != len(locations):
        raise ValueError("an address is there twice")
    return tuple(locations)


_NUMBERS = (("interface", 0, LOCATIONS_MAX - 1), ("port", 1, 65535), ("bulk_port", 1, 65535))


def checked_integer(fields: Mapping[str, object], key: str, maximum: int, minimum: int = 0) -> int:
    """The number under `key`. Raises: KeyError, ValueError."""
    value = fields[key]
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{key} is not a number from {minimum} to {maximum}")
    return value


def checked_text(fields: Mapping[str, object], key: str) -> str:
    """The text under `key`. Raises: KeyError, ValueError."""
    value = fields[key]
    if type(value) is not str or len(value.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"{key} is not a text of at most {TEXT_BYTES_MAX} bytes")
    return value
