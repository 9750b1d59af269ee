"""The two UDP sockets of an endpoint, compute and bulk, and the address at which the others reach them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

from hive_qos.errors import ConfigurationError
from transport.settings import Settings

BUFFER_BYTES = 4 * 2**20
"""Asked for in both directions; the kernel grants what its limits allow (systemd's sysctl file raises them)."""
DOCUMENTATION_ADDRESS = "192.0.2.1"
"""RFC 5737: never a real host; asking for the route to it names the default route's address, and sends nothing."""


@dataclass(frozen=True)
class Sockets:
    """Bound, non-blocking sockets and what to tell the others."""

    compute: socket.socket
    bulk: socket.socket
    advertise: str

    @property
    def compute_port(self) -> int:
        return int(self.compute.getsockname()[1])

    @property
    def bulk_port(self) -> int:
        return int(self.bulk.getsockname()[1])


def open_sockets(settings: Settings, *, hint: str = "") -> Sockets:
    """Bind both sockets to the address that leads to the others.

    That is `HIVE_LISTEN`, else the address of `HIVE_INTERFACE`, else the one from which `hint` (the rendezvous' host)
    or, without it, the default route is reached, else any that is not loopback, else loopback.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    address = settings.listen or _own_address(settings, hint)
    advertise = settings.advertise or address
    if ipaddress.ip_address(advertise.partition("%")[0]).is_unspecified:
        advertise = _own_address(settings, hint)
    compute = _bind(address, settings.listen_port)
    try:
        bulk = _bind(address, 0)
    except ConfigurationError:
        compute.close()
        raise
    return Sockets(compute, bulk, advertise)


def reopen_sockets(before: Sockets, *, address: str, advertise: str) -> Sockets:
    """Bind both sockets to another address of this host, to the same ports where those are free there.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    bound: list[socket.socket] = []
    for port in (before.compute_port, before.bulk_port):
        try:
            try:
                bound.append(_bind(address, port))
            except ConfigurationError:
                bound.append(_bind(address, 0))
        except ConfigurationError:
            for sock in bound:
                sock.close()
            raise
    return Sockets(bound[0], bound[1], advertise)


def is_ours(address: str) -> bool:
    """Whether an address is one of this host's at this moment."""
    try:
        _bind(address, 0).close()
    except ConfigurationError:
        return False
    return True


def is_reachable(address: str, *ports: int) -> bool:
    """Whether what a peer says of itself is a literal address and ports that can be dialled."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return all(0 < port < 65536 for port in ports)


def _bind(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise ConfigurationError("HIVE_LISTEN", f"{address}:{port}", f"cannot bind: {error.strerror}") from error
    return sock


def _own_address(settings: Settings, hint: str) -> str:
    if settings.interface:
        return address_of_interface(settings.interface)
    for target in (hint, os.environ.get("MASTER_ADDR", ""), DOCUMENTATION_ADDRESS):
        if target and (address := address_towards(target)):
            return address
    for name in psutil.net_if_addrs():
        with contextlib.suppress(ConfigurationError):
            address = address_of_interface(name)
            if not ipaddress.ip_address(address).is_loopback:
                return address
    return "127.0.0.1"


def address_towards(host: str) -> str:
    """Our address on the route to a host; "" without a route or a name. Sends no packet."""
    with contextlib.suppress(OSError, UnicodeError):
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return ""


def address_of_interface(name: str) -> str:
    """The first IPv4 address of an interface, else its first IPv6 address that is not link-local."""
    addresses = psutil.net_if_addrs().get(name)
    if addresses is None:
        raise ConfigurationError("HIVE_INTERFACE", name, "no such interface")
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in addresses:
            if one.family == family and not ipaddress.ip_address(one.address.partition("%")[0]).is_link_local:
                return str(one.address)
    raise ConfigurationError("HIVE_INTERFACE", name, "it has no usable address")
