"""Where packets to an address go: the route's interface and neighbour, and the port of a bridge that leads there; and
where those to everywhere go.

Messages without pyroute2, for every peer is asked for, and anew when a link changes. CPU time: a route 0.015 ms, where
pyroute2 0.9.7 takes 0.10 ms (docs/log/kernel.md); a port 2.5 times as long as a route.

Layouts: rtmsg of include/uapi/linux/rtnetlink.h, ndmsg of neighbour.h. Asking for one neighbour needs Linux 5.0.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from hive_qos.errors import KernelRejectedError, PrivilegeError
from hive_qos.netlink import NetlinkSocket, Request, attribute_map, pack_attribute

# linux/rtnetlink.h and linux/neighbour.h.
_RTM_GETROUTE, _RTM_GETNEIGH = 26, 30
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_VIA = 1, 4, 5, 6, 9, 18
_RTNH_F_DEAD, _RTN_UNICAST, _RT_TABLE_MAIN = 1, 1, 254
_NDA_DST, _NDA_LLADDR, _NDA_VLAN, _NDA_MASTER = 1, 2, 5, 9
# Family, bits of the destination and of the source, TOS, table, protocol, scope, type, flags.
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, weight, interface
_NDMSG = struct.Struct("=BxxxiHBB")  # family, interface, and what is not asked for
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENXIO, errno.EINVAL)


class Route(NamedTuple):
    """The interface that packets leave by, and the address there that takes them: the gateway's, or their own."""

    interface: str
    neighbour: str


def route_to(kernel: NetlinkSocket, address: str) -> Route | None:
    """The route of a packet to a literal address, None when there is none.

    Raises:
        KernelRejectedError: no answer in time, or another refusal.
    """
    destination = ipaddress.ip_address(address)
    family = _family(destination.version)
    head = _RTMSG.pack(family, 8 * len(destination.packed), 0, 0, 0, 0, 0, 0, 0)
    request = Request(_RTM_GETROUTE, 0, head + pack_attribute(_RTA_DST, destination.packed))
    try:
        found = kernel.ask(f"look up the route to {address}", request, _of_route)
    except PrivilegeError:  # EACCES: the route prohibits it
        return None
    except KernelRejectedError as error:
        if error.errno_value in _NO_ROUTE:
            return None
        raise
    index = int.from_bytes(found.get(_RTA_OIF, b"")[:4], sys.byteorder)
    gateway = found.get(_RTA_GATEWAY) or found.get(_RTA_VIA, b"")[2:]  # of another family: after its number
    neighbour = str(ipaddress.ip_address(gateway)) if gateway else address
    return Route(socket.if_indextoname(index), neighbour) if index else None


class WideRoute(NamedTuple):
    """A route of the main table to all addresses of an IP version, or to half of them.

    `destination` is as `ipaddress` writes it, "0.0.0.0/0" or "8000::/1". Several interfaces share what it carries.
    """

    destination: str
    metric: int
    interfaces: tuple[str, ...]


def wide_routes(kernel: NetlinkSocket) -> tuple[WideRoute, ...]:
    """Those that lead out of an interface, in the kernel's order.

    Raises:
        KernelRejectedError: no answer in time, or another refusal.
    """
    request = Request(_RTM_GETROUTE, 0, _RTMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0, 0, 0, 0))
    found = [one for one in kernel.read("list the routes", request, _wide) if one is not None]
    names = dict(socket.if_nameindex())
    return tuple(
        WideRoute(destination, metric, through)
        for destination, metric, indexes in found
        if (through := tuple(names[index] for index in indexes if index in names))
    )


def port_towards(kernel: NetlinkSocket, bridge: str, route: tuple[str, str]) -> str:
    """The port of a bridge below the route's interface that frames to its neighbour leave by; the bridge itself where
    the neighbour is on this host.

    Raises:
        KernelRejectedError: the neighbour is not resolved, or the bridge has not seen it send; no answer in time.
        OSError: an interface is gone.
    """
    interface, neighbour = route[0], ipaddress.ip_address(route[1])
    above, number = socket.if_nametoindex(interface), socket.if_nametoindex(bridge)
    head = _NDMSG.pack(_family(neighbour.version), above, 0, 0, 0)
    request = Request(_RTM_GETNEIGH, 0, head + pack_attribute(_NDA_DST, neighbour.packed))
    hardware = kernel.ask(f"look up the neighbour {neighbour}", request, _of_neighbour).get(_NDA_LLADDR, b"")
    body = _NDMSG.pack(socket.AF_BRIDGE, 0, 0, 0, 0) + pack_attribute(_NDA_LLADDR, hardware)
    body += pack_attribute(_NDA_MASTER, struct.pack("=I", number))
    if vlan := _vlan(bridge, interface):
        body += pack_attribute(_NDA_VLAN, struct.pack("=H", vlan))
    index = kernel.ask(f"ask {bridge} for the port of {neighbour}", Request(_RTM_GETNEIGH, 0, body), _interface)
    return socket.if_indextoname(index)


def _vlan(bridge: str, interface: str) -> int:
    """The VLAN under which a bridge knows an interface's neighbours, 0 where it does not tell VLANs apart."""
    place = Path("/sys/class/net", bridge, "bridge")
    try:
        if int((place / "vlan_filtering").read_text()) == 0:
            return 0
    except FileNotFoundError:  # a kernel whose bridges cannot
        return 0
    try:
        return int(Path("/proc/self/net/vlan", interface).read_text().partition("VID:")[2].split()[0])
    except FileNotFoundError:  # no VLAN: untagged
        return int((place / "default_pvid").read_text())


def _family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6


def _of_route(_: int, body: bytes) -> dict[int, bytes]:
    return attribute_map(body, _RTMSG.size)


def _wide(_: int, body: bytes) -> tuple[str, int, list[int]] | None:
    family, bits, _, _, table, _, _, kind, flags = _RTMSG.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6) or bits > 1 or (table, kind) != (_RT_TABLE_MAIN, _RTN_UNICAST):
        return None
    found = attribute_map(body, _RTMSG.size)
    address = found.get(_RTA_DST, bytes(4 if family == socket.AF_INET else 16))
    hops = [(flags, int.from_bytes(found.get(_RTA_OIF, b"")[:4], sys.byteorder))]
    several = found.get(_RTA_MULTIPATH, b"")
    while len(several) >= _RTNEXTHOP.size:
        length, hop_flags, _, index = _RTNEXTHOP.unpack_from(several)
        hops.append((hop_flags, index))
        several = several[max(_RTNEXTHOP.size, (length + 3) & ~3) :]
    indexes = [index for hop_flags, index in hops if index and not hop_flags & _RTNH_F_DEAD]
    metric = int.from_bytes(found.get(_RTA_PRIORITY, b"")[:4], sys.byteorder)
    return f"{ipaddress.ip_address(address)}/{bits}", metric, indexes


def _of_neighbour(_: int, body: bytes) -> dict[int, bytes]:
    return attribute_map(body, _NDMSG.size)


def _interface(_: int, body: bytes) -> int:
    return int(_NDMSG.unpack_from(body)[1])
