"""The UDP sockets of an endpoint, compute and bulk, of each address at which the others reach it.

The first pair follows the routes of this host. Further pairs are for its other addresses, each bound to its interface
(SO_BINDTODEVICE, socket(7), which needs Linux 5.7 without privileges): its packets are on a link of their own, also
where the usual route leads over the first interface.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from hive_qos.errors import ConfigurationError
from transport.mesh.paths import LOCATIONS_MAX, Location, is_usable
from transport.settings import Settings

BUFFER_BYTES = 4 * 2**20
"""Asked for in both directions; the kernel grants what its limits allow (systemd's sysctl file raises them)."""
ANY = (0,)
"""As ports: the kernel chooses one that is free."""
DOCUMENTATION_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""No real hosts (RFC 5737, RFC 3849): asking for a route there shows the default route's address, and sends nothing."""


@dataclass(frozen=True)
class Sockets:
    """Bound, non-blocking sockets and what to tell the others. `interface` is the name of theirs, "" if not known."""

    compute: socket.socket
    bulk: socket.socket
    advertise: str
    interface: str = ""

    @property
    def compute_port(self) -> int:
        return int(self.compute.getsockname()[1])

    @property
    def bulk_port(self) -> int:
        return int(self.bulk.getsockname()[1])

    def close(self) -> None:
        self.compute.close()
        self.bulk.close()


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
    compute = _bind(address, settings.ports or ANY)
    try:
        bulk = _bind(address, settings.ports or ANY)
    except ConfigurationError:
        compute.close()
        raise
    return Sockets(compute, bulk, advertise)


def open_all_sockets(settings: Settings, *, hint: str = "") -> tuple[Sockets, ...]:
    """The sockets of `open_sockets`, and a pair for each other address of this host, at most LOCATIONS_MAX in all.

    With `HIVE_LISTEN` or `HIVE_ADVERTISE` there is one pair, with `HIVE_INTERFACE` those of the interfaces in it.

    Raises:
        ConfigurationError: the first pair cannot be bound. Others that cannot be are left out.
    """
    first = open_sockets(settings, hint=hint)
    if settings.listen or settings.advertise:
        return (first,)
    found = [first]
    interfaces = psutil.net_if_addrs()
    for name, address in _other_addresses(settings, first.advertise, interfaces):
        if len(found) == LOCATIONS_MAX:
            break
        with contextlib.suppress(ConfigurationError):  # it has just gone, or is not ready yet
            found.append(_open_on(name, address, first, settings))
    if len(found) == 1:
        return (first,)
    home = next((name for name, known in interfaces.items() if first.advertise in [one.address for one in known]), "")
    return (replace(first, interface=home), *found[1:])


def locations_of(pairs: Sequence[Sockets]) -> tuple[Location, ...]:
    """What to tell the others of sockets."""
    interfaces = list(dict.fromkeys(pair.interface for pair in pairs))
    return tuple(
        Location(interfaces.index(pair.interface), pair.advertise, pair.compute_port, pair.bulk_port) for pair in pairs
    )


def reopen_sockets(before: Sockets, settings: Settings, *, address: str, advertise: str) -> Sockets:
    """Bind both sockets to another address of this host, to the same ports where those are free there.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    bound: list[socket.socket] = []
    for port in (before.compute_port, before.bulk_port):
        try:
            bound.append(_bind(address, (port, *(settings.ports or ANY))))
        except ConfigurationError:
            for sock in bound:
                sock.close()
            raise
    return Sockets(bound[0], bound[1], advertise, before.interface)


def is_ours(address: str) -> bool:
    """Whether an address is one of this host's at this moment."""
    try:
        _bind(address, ANY).close()
    except ConfigurationError:
        return False
    return True


def _bind(address: str, ports: Sequence[int]) -> socket.socket:
    """A socket at the first of the ports that is free there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        sock.setblocking(False)
        for left, port in zip(reversed(range(len(ports))), ports, strict=True):
            try:
                sock.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not left:
                    raise
            else:
                break
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            text, reason = f"{min(ports)}-{max(ports)}", f"at {address} all of them are in use: name more"
            raise ConfigurationError("HIVE_PORTS", text, reason) from error
        raise ConfigurationError("HIVE_LISTEN", address, f"cannot bind: {error.strerror}") from error
    return sock


def _open_on(name: str, address: str, like: Sockets, settings: Settings) -> Sockets:
    """A pair for another address, at the ports of the first pair where those are free."""
    pair = replace(reopen_sockets(like, settings, address=address, advertise=address), interface=name)
    try:
        for sock in (pair.compute, pair.bulk):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
    except OSError as error:
        pair.close()
        raise ConfigurationError("HIVE_INTERFACE", name, f"cannot bind to it: {error.strerror}") from error
    return pair


def _other_addresses(
    settings: Settings, first: str, interfaces: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, str]]:
    """Interfaces and addresses of ours beside the first one: of each interface that is up one of either family.

    No loopback, and no tunnel (it carries no broadcast): its packets go over another interface of ours.
    """
    states = psutil.net_if_stats()
    for name, addresses in interfaces.items():
        state = states.get(name)
        if settings.interfaces and name not in settings.interfaces:
            continue
        if state is None or not state.isup or "broadcast" not in state.flags:
            continue
        for family in (socket.AF_INET, socket.AF_INET6):
            usable = [str(one.address) for one in addresses if one.family == family and is_usable(one.address)]
            if usable and first not in usable:
                yield name, usable[0]


def _own_address(settings: Settings, hint: str) -> str:
    if settings.interfaces:
        return address_of_interface(settings.interfaces[0])
    for target in (hint, os.environ.get("MASTER_ADDR", "")):
        if target not in ("", "0.0.0.0", "::") and (address := address_towards(target)):
            return address
    return outer_address() or "127.0.0.1"


@functools.cache
def machine() -> str:
    """What tells this machine from others; its containers have the same."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return socket.gethostname()


def address_towards(host: str) -> str:
    """Our address on the route to a host; "" without a route or a name. Sends no packet.

    An IPv4 one where there is one, so that all ranks of a host agree.
    """
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        for family, kind, _, _, target in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return ""


def outer_address() -> str:
    """Our address on the default route, else of the first interface that is up; "" where there is loopback alone."""
    for target in DOCUMENTATION_ADDRESSES:
        if address := address_towards(target):
            return address
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for family in (socket.AF_INET, socket.AF_INET6):
        for name, addresses in sorted(psutil.net_if_addrs().items()):
            for one in addresses if name in up else ():
                address = str(one.address)
                if one.family == family and is_usable(address) and not ipaddress.ip_address(address).is_loopback:
                    return address
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
