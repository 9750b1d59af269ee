"""The kernel says which port of a bridge leads to an address, by what it knows of neighbours and ports.

a: br0 192.168.77.1 ── eth0, shaped ── b, which is the gateway, too
                   └── eth1 ────────── c, a container or virtual machine
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tools.lab import Lab

ANSWERS = """
import socket, sys
from functools import partial
from broker.measure.interfaces import Routes
from hive_qos.netlink import NetlinkSocket
from shaping.netlink.routes import port_towards, route_to
kernel = NetlinkSocket()
routes = Routes(partial(route_to, kernel), partial(port_towards, kernel))
now_s = 0.0
for word in sys.argv[2:]:
    if word.startswith("connect-"):
        address = word.removeprefix("connect-")
        try:
            socket.create_connection((address, 9), 5)
        except ConnectionRefusedError:  # that is how it was found
            now_s += 1.0
    else:
        print(routes.interface_towards(word, shaped=frozenset({sys.argv[1]}), now_s=now_s))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("bridge") as lab:
        for name in ("a", "b", "c"):
            lab.host(name)
        lab.link("a", "b")
        lab.link("a", "c")
        lab.up()
        a = lab["a"]
        a.run(["ip", "link", "add", "br0", "up", "type", "bridge"])
        a.run(["ip", "address", "add", "192.168.77.1/24", "dev", "br0"])
        a.run(["ip", "address", "add", "fd77::1/64", "dev", "br0", "nodad"])
        for name, number in (("b", 2), ("c", 3)):
            a.run(["ip", "link", "set", a.interface_on(name), "master", "br0"])
            lab[name].run(["ip", "address", "add", f"192.168.77.{number}/24", "dev", lab[name].interface])
            lab[name].run(["ip", "address", "add", f"fd77::{number}/64", "dev", lab[name].interface, "nodad"])
        a.run(["ip", "route", "add", "203.0.113.0/24", "via", "192.168.77.2"])
        a.run(["ip", "route", "add", "198.51.100.0/24", "via", "inet6", "fd77::2", "dev", "br0"])
        yield lab


def answers(lab: Lab, *words: str) -> list[str]:
    a = lab["a"]
    return a.run([sys.executable, "-c", ANSWERS, a.interface_on("b"), *words]).stdout.split()


def test_what_is_behind_another_port_of_the_bridge_does_not_count_as_the_uplinks(lab: Lab) -> None:
    uplink, b, c = lab["a"].interface_on("b"), "192.168.77.2", "192.168.77.3"
    assert answers(lab, f"connect-{b}", f"connect-{c}", b, c, "203.0.113.9") == [uplink, "None", uplink]
    b, c = "fd77::2", "fd77::3"
    assert answers(lab, f"connect-{b}", f"connect-{c}", b, c, "198.51.100.9") == [uplink, "None", uplink]


def test_a_neighbour_that_nobody_has_spoken_to_counts_once_it_was(lab: Lab) -> None:
    lab["a"].run(["ip", "neighbour", "flush", "dev", "br0"])
    b = "192.168.77.2"
    assert answers(lab, b, f"connect-{b}", b) == ["None", lab["a"].interface_on("b")]


def test_a_neighbour_of_no_known_port_counts_nowhere(lab: Lab) -> None:
    """As where the bridge has forgotten it, or the kernel cannot tell."""
    a, b = lab["a"], "192.168.77.77"
    a.run(["ip", "neighbour", "replace", b, "lladdr", "02:00:00:00:00:77", "dev", "br0"])
    assert answers(lab, b, "192.168.77.1") == ["None", "None"]
