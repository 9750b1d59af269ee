"""A host's address changes in the middle of collectives: every result is right, and nobody sees more than a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_cases import ALL
from moving_ranks import running

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


MOVES = [
    ("another address", "a native, a native, b native"),
    ("another IPv6 address", "a native, b aioquic"),
    ("another link after a cut", "b native, a native"),
]
if ALL:  # `make test-engines`: all of them, which take 8 s each
    MOVES += [
        ("another address", "a native, b native"),
        ("another address", "b native, a native"),
        ("another address", "b aioquic, a aioquic"),
        ("another address", "a aioquic, b aioquic"),
        ("another address", "a aioquic, b native"),
        ("another link", "a native, b native"),
        ("another link", "b aioquic, a aioquic"),
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("change", "ranks"), MOVES)
def test_collectives_go_on_where_the_address_of_a_host_changes(
    lab_factory: Callable[..., Lab], tmp_path: Path, change: str, ranks: str
) -> None:
    """Rank by rank, in which host they are: of two ranks the smaller one has dialled."""
    make_change, six = CHANGES[change]
    lab = lab_factory("moving")
    network(lab)
    b_address = lab["b"].address6 if six else lab["b"].address
    places = [tuple(one.split()) for one in ranks.split(", ")]
    with running(lab, tmp_path, [(host, engine) for host, engine in places], six=six) as programs:
        new = make_change(lab, b_address)
        for one in programs:
            one.rounds(10)
        found = [one.end() for one in programs]
    print(f"{change}, {ranks}: the slowest round took {max(one['slowest_s'] for one in found):.2f} s")
    in_b = [host for host, _ in places].index("b")
    now = {remote[0] for remote in found[in_b]["after"].values()}
    assert new in now
    # On a busy machine an address of the other family may have answered first, before and after.
    assert (lab["a"].address6 if six else lab["a"].address) not in now
    if len(places) == 2:  # what the mover had dialled has moved; what it had accepted was dialled again
        mover = 1 - in_b
        before = found[mover]["before"]
        kept = [number for number, (_, _, bulk) in found[mover]["after"].items() if number in before and not bulk]
        assert bool(kept) == (mover == 0) or change.startswith("another link")  # there each link has its connection
