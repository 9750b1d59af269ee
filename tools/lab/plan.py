"""Addresses, device names and routes of a lab, computed from its description alone.

Link number n (from 1, in order of declaration) is the subnet 10.42.n.0/24 and fd42:0:0:n::/64; its first end has
host part 1, its second end 2. A node's interfaces are eth0, eth1, ... in the order of its links, and its own address
is that of eth0. Adding a link at the end never changes what was there.

Routes are shortest paths by hop count, ties broken by the order of links. Only routers forward: a path never goes
through a host. A subnet between two hosts is reached by a route to each end, where a path to that end exists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tools.lab.model import Description, LinkSpec, NodeSpec


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One end of one link, as its node sees it."""

    node: str
    peer: str
    link: str
    name: str
    mac: str
    address: str
    address6: str
    wire: str
    """The device in the wires namespace that this end is plugged into."""


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """One link: its number, both ends, and the TAP devices that the relay would use."""

    number: int
    spec: LinkSpec
    first: Interface
    second: Interface

    @property
    def taps(self) -> tuple[str, str]:
        """The relay's devices, beside the first and the second end."""
        return f"t{self.number}a", f"t{self.number}b"


@dataclass(frozen=True, kw_only=True)
class Route:
    """To a subnet or a single address, through a neighbour."""

    destination: str
    destination6: str
    via: str
    via6: str
    interface: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the kernel has to be told, by node."""

    links: tuple[LinkPlan, ...]
    interfaces: Mapping[str, tuple[Interface, ...]]
    routes: Mapping[str, tuple[Route, ...]]

    def interface_on(self, node: str, via: str) -> Interface:
        """The interface of `node` on the link called `via`, or on its first link to the neighbour called `via`.

        Raises:
            KeyError: `node` has neither; the text lists what it has.
        """
        for interface in self.interfaces[node]:
            if interface.link == via:
                return interface
        for interface in self.interfaces[node]:
            if interface.peer == via:
                return interface
        have = ", ".join(interface.link for interface in self.interfaces[node]) or "no link"
        raise KeyError(f"{node} has no link or neighbour {via!r}; it has {have}")

    def far_end(self, interface: Interface) -> Interface:
        """The other end of an interface's link."""
        return next(end for end in self.interfaces[interface.peer] if end.link == interface.link)


def make_plan(description: Description) -> Plan:
    """Number the links, name the interfaces, find the routes. Pure; the same description gives the same plan."""
    interfaces: dict[str, list[Interface]] = {node.name: [] for node in description.nodes}
    links: list[LinkPlan] = []
    for number, spec in enumerate(description.links, start=1):
        ends: list[Interface] = []
        for part, (node, peer) in enumerate(((spec.first, spec.second), (spec.second, spec.first)), start=1):
            end = Interface(
                node=node,
                peer=peer,
                link=spec.name,
                name=f"eth{len(interfaces[node])}",
                mac=f"02:42:00:00:{number:02x}:{part:02x}",
                address=f"10.42.{number}.{part}",
                address6=f"fd42:0:0:{number:x}::{part}",
                wire=f"w{number}{'ab'[part - 1]}",
            )
            interfaces[node].append(end)
            ends.append(end)
        links.append(LinkPlan(number=number, spec=spec, first=ends[0], second=ends[1]))
    routers = {node.name for node in description.nodes if node.kind == "router"}
    frozen = {name: tuple(of_node) for name, of_node in interfaces.items()}
    routes = {name: _routes(name, links, frozen, routers) for name in frozen}
    return Plan(links=tuple(links), interfaces=frozen, routes=routes)


def hosts_file(plan: Plan, *, node: str, machine: str) -> str:
    """The text of /etc/hosts in a node: `b` is b's first address, `b.b-r` its address on the link b-r.

    Programs take the machine's name for their host's (torchrun does): it is the node's own first address there, and
    asked for its full name it gives `b.b-r`, which every other host knows too.

    Args:
        node: whose file it is.
        machine: what the machine calls itself; all nodes share it. A node of the same name keeps it for itself.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    own = "" if machine in ("localhost", *plan.interfaces) else f" {machine}"
    if own and not plan.interfaces[node]:
        lines.append(f"127.0.1.1{own}")
    for name, interfaces in plan.interfaces.items():
        for position, interface in enumerate(interfaces):
            aliases = f"{name} {name}.{interface.link}" if position == 0 else f"{name}.{interface.link}"
            if position == 0 and name == node:
                aliases += own
            lines += [f"{interface.address} {aliases}", f"{interface.address6} {aliases}"]
    return "\n".join(lines) + "\n"


def node_lines(plan: Plan, node: NodeSpec, *, links: Collection[str]) -> list[str]:
    """`ip` lines that give a node its addresses on `links`, its neighbours there, and all its routes."""
    lines: list[str] = []
    control = f" congctl {node.congestion}" if node.congestion else ""
    for interface in plan.interfaces[node.name]:
        if interface.link not in links:
            continue
        device = interface.name
        far = plan.far_end(interface)
        subnet, subnet6 = _subnet(interface.address, interface.address6)
        lines += [
            f"address add {interface.address}/24 dev {device}",
            f"address add {interface.address6}/64 dev {device} nodad",
            f"link set {device} up",
            # Known neighbours: no resolution that random loss could delay by a second.
            f"neighbour replace {far.address} lladdr {far.mac} nud permanent dev {device}",
            f"neighbour replace {far.address6} lladdr {far.mac} nud permanent dev {device}",
        ]
        if control:
            lines += [
                f"route replace {subnet} dev {device} proto kernel scope link src {interface.address}{control}",
                f"route replace {subnet6} dev {device} proto kernel metric 256{control}",
            ]
    for route in plan.routes[node.name]:
        lines += [
            f"route replace {route.destination} via {route.via} dev {route.interface}{control}",
            f"route replace {route.destination6} via {route.via6} dev {route.interface}{control}",
        ]
    return lines


def _subnet(address: str, address6: str) -> tuple[str, str]:
    return f"{address.rpartition('.')[0]}.0/24", f"{address6.rpartition('::')[0]}::/64"


def _routes(
    start: str, links: list[LinkPlan], interfaces: Mapping[str, tuple[Interface, ...]], routers: set[str]
) -> tuple[Route, ...]:
    """Breadth first from `start`, through routers only; the first hop found is the way."""
    hops: dict[str, int] = {start: 0}
    first_hop: dict[str, tuple[Interface, Interface]] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node != start and node not in routers:
            continue
        for interface in interfaces[node]:
            if interface.peer in hops:
                continue
            hops[interface.peer] = hops[node] + 1
            far = next(end for end in interfaces[interface.peer] if end.link == interface.link)
            first_hop[interface.peer] = first_hop.get(node, (interface, far))
            waiting.append(interface.peer)
    attached = {interface.link for interface in interfaces[start]}
    routes: list[Route] = []
    for link in links:
        if link.spec.name in attached:
            continue
        ends = [end for end in (link.first, link.second) if end.node in hops]
        forwarding = [end for end in ends if end.node in routers]
        if forwarding:
            near = min(forwarding, key=lambda end: hops[end.node])
            routes.append(_route(_subnet(near.address, near.address6), first_hop[near.node]))
        else:
            routes += [_route((f"{end.address}/32", f"{end.address6}/128"), first_hop[end.node]) for end in ends]
    return tuple(routes)


def _route(destination: tuple[str, str], hop: tuple[Interface, Interface]) -> Route:
    near, far = hop
    return Route(
        destination=destination[0],
        destination6=destination[1],
        via=far.address,
        via6=far.address6,
        interface=near.name,
    )
