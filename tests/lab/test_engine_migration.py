"""A host's address changes in the middle of collectives: every result is right, and nobody sees more than a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from moving_ranks import two_ranks

from tools.lab import Host, Lab

RATE_BITS_PER_S = 100_000_000
WITHOUT_S = 0.3
"""Between the old address and the new one the host has none."""


def ip(host: Host, *orders: str) -> None:
    for order in orders:
        host.run(["ip", *order.split()])


def network(lab: Lab) -> None:
    """Host a with two links to the router, "wifi" and "cable", host b with one; a's way to b leads over the first."""
    lab.host("a")
    lab.host("b")
    lab.router("r")
    for name in ("wifi", "cable"):
        lab.link("a", "r", name=name, rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.002)
    lab.link("b", "r", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.002)
    lab.up()


def replace_address(lab: Lab, b_address: str) -> str:
    """Take a's address away, give it another one of the same link after a while: the new one."""
    a, r = lab["a"], lab["r"]
    six = ":" in b_address
    old, router = (a.address6, r.address6_on("wifi")) if six else (a.address, r.address_on("wifi"))
    separator, length = ("::", 64) if six else (".", 24)
    new = old.rpartition(separator)[0] + separator + "77"
    net = b_address.rpartition(separator)[0] + (separator if six else ".0")
    ip(a, f"address del {old}/{length} dev eth0")
    time.sleep(WITHOUT_S)
    ip(
        a,
        f"address add {new}/{length} dev eth0{' nodad' if six else ''}",
        f"route replace {net}/{length} via {router}",
    )
    return new


def plug_the_cable_in(lab: Lab, b_address: str) -> str:
    """The way to b leads over the cable from now on, and a moment later the other link is gone."""
    a, r = lab["a"], lab["r"]
    ip(a, f"route replace {b_address.rpartition('.')[0]}.0/24 via {r.address_on('cable')}")
    time.sleep(WITHOUT_S)
    ip(a, "link set eth0 down")
    return a.address_on("cable")


def pull_and_plug(lab: Lab, b_address: str) -> str:
    """The link goes without a word, and only then the way to b leads over the other one."""
    a = lab["a"]
    ip(a, "link set eth0 down")
    time.sleep(WITHOUT_S)
    return plug_the_cable_in(lab, b_address)


CHANGES = {
    "another address": (replace_address, False),
    "another IPv6 address": (replace_address, True),
    "another link": (plug_the_cable_in, False),
    "another link after a cut": (pull_and_plug, False),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("change", "engines", "moving"),
    [
        ("another address", ("native", "native"), 0),
        ("another address", ("native", "native"), 1),
        ("another address", ("aioquic", "aioquic"), 0),
        ("another address", ("aioquic", "aioquic"), 1),
        ("another address", ("aioquic", "native"), 0),
        ("another IPv6 address", ("native", "aioquic"), 0),
        ("another link", ("native", "native"), 0),
        ("another link", ("aioquic", "aioquic"), 1),
        ("another link after a cut", ("native", "native"), 1),
    ],
)
def test_collectives_go_on_where_the_address_of_a_host_changes(
    lab_factory: Callable[..., Lab],
    tmp_path: Path,
    change: str,
    engines: tuple[str, str],
    moving: int,
) -> None:
    make_change, six = CHANGES[change]
    lab = lab_factory("moving")
    network(lab)
    b_address = lab["b"].address6 if six else lab["b"].address
    with two_ranks(lab, tmp_path, engines, moving=moving, six=six) as (mover, other):
        new = make_change(lab, b_address)
        for one in (mover, other):
            one.rounds(10)
        found = mover.end()
        seen = other.end()
    print(f"{change}, {engines}, rank {moving} moves: slowest {found['slowest_s']:.2f} and {seen['slowest_s']:.2f} s")
    assert {remote[0] for remote in seen["after"].values()} == {new}
    # What the mover had dialled has moved; what it had accepted was dialled again.
    assert (found["before"].keys() == found["after"].keys()) == (moving == 0)
