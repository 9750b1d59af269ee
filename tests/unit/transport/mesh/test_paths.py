"""Which paths lead to a peer, in which order, and which of them are links of their own."""

from __future__ import annotations

import pytest

from transport.mesh.paths import PATHS_MAX, Link, Location, is_spare, paths_between


def rank(*addresses: str) -> list[Location]:
    """A rank with one interface for each pair of addresses."""
    return [Location(place // 2, address, 4000, 5000) for place, address in enumerate(addresses) if address]


def tried(own: list[Location], theirs: list[Location]) -> list[tuple[str, str]]:
    return [(own[path.local].address, path.remote.address) for path in paths_between(own, theirs)]


def test_the_first_addresses_come_first_and_then_those_of_one_network() -> None:
    own, theirs = rank("10.0.1.1", "", "10.0.2.1", ""), rank("10.0.2.9", "", "10.0.1.9", "")
    assert tried(own, theirs) == [
        ("10.0.1.1", "10.0.2.9"),
        ("10.0.1.1", "10.0.1.9"),
        ("10.0.2.1", "10.0.2.9"),
        ("10.0.2.1", "10.0.1.9"),
    ]


def test_a_path_has_one_family() -> None:
    own, theirs = rank("10.0.1.1", "fd00::1"), rank("", "fd00::9")
    assert tried(own, theirs) == [("fd00::1", "fd00::9")]
    assert tried(rank("10.0.1.1"), theirs) == []


def test_an_address_that_both_have_counts_only_as_the_first_one_of_a_peer() -> None:
    bridge = "172.17.0.1"
    other_host = tried(rank("10.0.1.1", "", bridge), rank("10.0.1.9", "", bridge))
    assert (("10.0.1.1", bridge) in other_host, (bridge, bridge) in other_host) == (False, False)
    assert tried(rank("127.0.0.1", "", "10.0.1.1"), rank("127.0.0.1", "", "10.0.1.1")) == [
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.1.1", "127.0.0.1"),
    ]


def test_no_more_than_the_bound_are_tried() -> None:
    many = rank(*[part for n in range(4) for part in (f"10.0.{n}.1", f"fd00:{n}::1")])
    others = rank(*[part for n in range(4) for part in (f"10.0.{n}.9", f"fd00:{n}::9")])
    paths = paths_between(many, others)
    assert len(paths) == PATHS_MAX
    assert {(many[path.local].interface, path.remote.interface) for path in paths} >= {(n, n) for n in range(4)}


@pytest.mark.parametrize(
    ("link", "in_use", "own", "theirs", "spare"),
    [
        ((1, 1), [(0, 0)], 2, 2, True),
        ((0, 1), [(0, 0)], 2, 2, False),  # over our first interface twice
        ((1, 0), [(0, 0)], 2, 2, False),
        ((1, 0), [(0, 0)], 2, 1, True),  # the peer has no other
        ((0, 1), [(0, 0)], 1, 2, True),
        ((0, 0), [(0, 0)], 1, 1, False),
        ((2, 2), [(0, 0), (1, 1)], 3, 3, True),
        ((2, 1), [(0, 0), (1, 1)], 3, 2, True),
    ],
)
def test_a_spare_path_takes_an_interface_that_no_other_has(
    link: Link, in_use: list[Link], own: int, theirs: int, spare: bool
) -> None:
    assert is_spare(link, in_use=in_use, own=own, theirs=theirs) == spare
