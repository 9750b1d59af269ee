"""Making the parts of a lab, in the order in which `Lab` calls: guard, wires, nodes, cables, relay, links, addresses.

Nothing here cleans up: all of it happens in namespaces whose name tells whose they are, and `state.tear_down` finds
them by that name.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tools.lab import wire
from tools.lab.kernel import (
    LabError,
    has_netem,
    ip_batch,
    segmentation_off,
    segmentation_on,
    set_sysctls,
    tc_batch,
    wait_until_running,
)
from tools.lab.model import NodeSpec
from tools.lab.plan import LinkPlan, Plan, hosts_file, node_lines
from tools.lab.state import HOSTS_FILES, directory_of

_NODE_SYSCTLS = {
    "net.ipv4.ip_forward": "0",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv6.conf.all.forwarding": "0",
    "net.ipv6.conf.default.accept_ra": "0",
    "net.ipv6.conf.default.accept_dad": "0",
    "net.ipv6.conf.default.router_solicitations": "0",
}
"""The same start on every machine, addresses usable at once, and silence where nobody talks."""

_ROUTER_SYSCTLS = {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}
_WIRES_SYSCTLS = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
_MKDIR_ATTEMPTS = 5
_TAP_FRAMES = 2000
"""A TAP device's own queue: takes 25 ms of full frames at 1 Gbit/s while the relay is held up."""


def start_guard(lab_id: str) -> subprocess.Popen[bytes]:
    """The process that takes the lab down when this one is dead (see `guard`)."""
    return _helper(lab_id, "guard", [lab_id, str(os.getpid())])


def start_relay(lab_id: str, *, wires: str) -> subprocess.Popen[bytes]:
    """The process that delays and loses frames (see `relay`); it listens when this returns.

    Raises:
        LabError: no access to TAP devices, or it does not start.
    """
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise LabError("delay and loss need netem in the kernel, or /dev/net/tun readable and writable by this user")
    relay = _helper(lab_id, "relay", [str(directory_of(lab_id) / "relay.sock")], namespace=wires)
    if relay.stdout is None or relay.stdout.readline() != b"ready\n":
        words = (directory_of(lab_id) / "relay.log").read_text(errors="replace").strip().rpartition("\n")[2]
        raise LabError(f"the relay does not start: {words}")
    return relay


def wires(namespace: str) -> None:
    """The namespace through which all links run; it has no addresses and says nothing."""
    ip_batch([f"netns add {namespace}"])
    set_sysctls(_WIRES_SYSCTLS, namespace=namespace)


def nodes(specs: Sequence[NodeSpec], *, namespaces: Mapping[str, str]) -> None:
    """A namespace for each node, with its sysctls, and its loopback up."""
    ip_batch([f"netns add {namespaces[node.name]}" for node in specs])
    for node in specs:
        forwarding = _ROUTER_SYSCTLS if node.kind == "router" else {}
        set_sysctls({**_NODE_SYSCTLS, **forwarding, **node.sysctls}, namespace=namespaces[node.name])
        ip_batch(["link set lo up"], namespace=namespaces[node.name])


def hosts_files(plan: Plan, *, namespaces: Mapping[str, str]) -> None:
    """Every node's /etc/hosts, where both `launch` and `ip netns exec` look for it."""
    for name in plan.interfaces:
        directory = HOSTS_FILES / namespaces[name]
        for attempt in range(_MKDIR_ATTEMPTS):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                break
            except FileNotFoundError:  # another lab has just ended and removed its empty /etc/netns
                if attempt == _MKDIR_ATTEMPTS - 1:
                    raise
        (directory / "hosts").write_text(hosts_file(plan, node=name, machine=socket.gethostname()))


def choose_mediums(links: Sequence[LinkPlan]) -> dict[str, wire.Medium]:
    """What carries each link; asks the kernel for netem only where the answer matters."""
    matters = any(link.spec.carrier == "auto" and (link.spec.delay_s or link.spec.loss) for link in links)
    netem = matters and has_netem()
    return {link.spec.name: wire.choose_medium(link.spec, has_netem=netem) for link in links}


def cables(links: Sequence[LinkPlan], specs: Sequence[NodeSpec], *, namespaces: Mapping[str, str], wires: str) -> None:
    """Devices between the nodes and the wires, carrying real frames, or lumps where the link offloads."""
    segments = {node.name: node.gso_max_segs for node in specs}
    ip_batch([line for link in links for line in wire.veth_lines(link, namespaces=namespaces, wires=wires)])
    lumps = [end for link in links if link.spec.offload for end in (link.first, link.second)]
    frames = [end for link in links if not link.spec.offload for end in (link.first, link.second)]
    for end in lumps:
        segmentation_on([end.name], namespace=namespaces[end.node])
    for end in frames:
        segmentation_off([end.name], namespace=namespaces[end.node], gso_max_segs=segments[end.node])
    segmentation_on([end.wire for end in lumps], namespace=wires)
    segmentation_off([end.wire for end in frames], namespace=wires)


def wire_up(link: LinkPlan, medium: wire.Medium, *, wires: str, limit_bytes: int) -> None:
    """The link itself: queues, and frames passed on between its two sides. The relay's devices have to be there."""
    taps = link.taps if medium == "relay" else ()
    ip_batch(
        [f"link set {tap} txqueuelen {_TAP_FRAMES} up" for tap in taps]
        + [f"link set {end.wire} up" for end in (link.first, link.second)],
        namespace=wires,
    )
    tc_batch(wire.tc_lines(link, medium, limit_bytes=limit_bytes), namespace=wires)


def addresses(plan: Plan, specs: Sequence[NodeSpec], *, links: Collection[str], namespaces: Mapping[str, str]) -> None:
    """Addresses and neighbours on the new links, routes everywhere; frames pass when this returns."""
    for node in specs:
        ip_batch(node_lines(plan, node, links=links), namespace=namespaces[node.name])
    for name, interfaces in plan.interfaces.items():
        devices = [interface.name for interface in interfaces if interface.link in links]
        wait_until_running(devices, namespace=namespaces[name])


def _helper(
    lab_id: str, module: str, arguments: Sequence[str], *, namespace: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a module of ours as a process that Ctrl-C does not reach."""
    enter = ["ip", "netns", "exec", namespace] if namespace is not None else []
    root = str(Path(__file__).parents[2])
    with open(directory_of(lab_id) / f"{module}.log", "wb") as log:
        return subprocess.Popen(
            [*enter, sys.executable, "-m", f"tools.lab.{module}", *arguments],
            env={**os.environ, "PYTHONPATH": root},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if namespace is not None else log,
            stderr=log,
            start_new_session=True,
        )
