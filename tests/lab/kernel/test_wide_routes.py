"""The kernel's routes to everywhere are read with all interfaces that share one, and with both halves of a VPN's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from hive_qos.netlink import NetlinkSocket
from shaping.netlink.routes import WideRoute, wide_routes
from tools.lab import Lab
from tools.lab.kernel import entered


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("routes") as lab:
        lab.host("a")
        lab.up()
        for number in (1, 2):
            lab["a"].run(["ip", "link", "add", f"out{number}", "up", "type", "veth", "peer", "name", f"end{number}"])
            lab["a"].run(["ip", "link", "set", f"end{number}", "up"])
            lab["a"].run(["ip", "address", "add", f"192.168.{number}.1/24", "dev", f"out{number}"])
            lab["a"].run(["ip", "address", "add", f"fd77:{number}::1/64", "dev", f"out{number}", "nodad"])
        yield lab


def found(lab: Lab, *commands: str) -> tuple[WideRoute, ...]:
    for command in commands:
        lab["a"].run(["ip", *command.split()])
    with entered(lab["a"].namespace), contextlib.closing(NetlinkSocket()) as netlink:
        routes = tuple(sorted(wide_routes(netlink)))
    for command in commands:
        lab["a"].run(["ip", *command.replace("route add", "route del").split()])
    return routes


@pytest.mark.parametrize(("option", "whole", "gateway"), [
    ("-4", "0.0.0.0/0", "192.168.{}.9"), ("-6", "::/0", "fd77:{}::9"),
])  # fmt: skip
def test_all_interfaces_that_share_a_default_route_are_named(lab: Lab, option: str, whole: str, gateway: str) -> None:
    hops = " ".join(f"nexthop via {gateway.format(number)}" for number in (1, 2))
    single = f"via {gateway.format(1)} metric 700"
    assert found(lab, f"{option} route add default metric 50 {hops}", f"{option} route add default {single}") == (
        WideRoute(whole, 50, ("out1", "out2")),
        WideRoute(whole, 700, ("out1",)),
    )


def test_halves_are_told_from_smaller_routes_other_tables_and_what_leads_nowhere(lab: Lab) -> None:
    routes = found(
        lab,
        "route add 0.0.0.0/1 dev out1",
        "route add 128.0.0.0/1 dev out1",
        "-6 route add 8000::/1 dev out2 metric 9",
        "route add 64.0.0.0/2 dev out1",
        "route add default dev out2 table 77",
        "route add unreachable default metric 8",
    )
    assert routes == (
        WideRoute("0.0.0.0/1", 0, ("out1",)),
        WideRoute("128.0.0.0/1", 0, ("out1",)),
        WideRoute("8000::/1", 9, ("out2",)),
    )
