"""What interfaces there are towards an address, how fast each says that it is, and how long its frames are."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

import psutil

from broker.daemon.netlink import Kernel

ROUTE_LIFE_S = 10.0
ROUTES_MAX = 4096
LINKS_LIFE_S = 10.0
MTU_BYTES = 1500
"""Of an interface that is not there yet."""

_SIOCETHTOOL, _ETHTOOL_GDRVINFO = 0x8946, 0x3
_DRIVER_INFO_BYTES = 196
_NO_SPEED = ("veth", "tun", "bridge", "dummy", "ifb", "wireguard", "openvswitch")
"""Drivers whose speed is made up (veth says 10 Gbit/s, tun 10 Mbit/s): better none than that."""


class Routes:
    """Which shaped interface leads to an address. Remembers for a while; for one thread."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._known: dict[str, tuple[str | None, float]] = {}

    def interface_towards(self, address: str, *, shaped: frozenset[str], now_s: float) -> str | None:
        """Name the shaped interface that a packet to `address` leaves by; None when it is another, or none."""
        known = self._known.get(address)
        if known is None or now_s - known[1] > ROUTE_LIFE_S:
            if len(self._known) >= ROUTES_MAX:
                self._known.clear()
            try:
                name = self._kernel.interface_towards(address)
            except OSError:  # no answer in time: ask again next time, count the flow nowhere meanwhile
                return None
            known = (name, now_s)
            self._known[address] = known
        return known[0] if known[0] in shaped else None

    def forget(self) -> None:
        """Interfaces have changed: ask again."""
        self._known.clear()


class Links:
    """What the drivers say of their links. Remembers for a while; for one thread."""

    def __init__(self) -> None:
        self._speeds: dict[str, int | None] = {}
        self._mtus: dict[str, int] = {}
        self._at_s: float | None = None

    def link_bits_per_s(self, interface: str, *, now_s: float) -> int | None:
        """The link's speed, None where the driver says none that means anything."""
        self._look(now_s)
        return self._speeds.get(interface)

    def mtu_bytes(self, interface: str, *, now_s: float) -> int:
        """The longest packet that the link takes."""
        self._look(now_s)
        return self._mtus.get(interface, MTU_BYTES)

    def forget(self) -> None:
        """Links have changed: ask again."""
        self._at_s = None

    def _look(self, now_s: float) -> None:
        if self._at_s is not None and now_s - self._at_s <= LINKS_LIFE_S:
            return
        self._at_s = now_s
        found = psutil.net_if_stats()
        self._speeds = {
            name: stats.speed * 1_000_000 if stats.speed > 0 and driver_of(name) not in _NO_SPEED else None
            for name, stats in found.items()
        }
        self._mtus = {name: stats.mtu for name, stats in found.items()}


def received_bytes() -> dict[str, int]:
    """What came in through each interface of our network namespace, cumulative."""
    return {name: counters.bytes_recv for name, counters in psutil.net_io_counters(pernic=True, nowrap=False).items()}


def driver_of(interface: str) -> str:
    """The driver's name as ethtool shows it, "" where the interface has none."""
    info = array.array("B", struct.pack("=I", _ETHTOOL_GDRVINFO) + bytes(_DRIVER_INFO_BYTES - 4))
    request = struct.pack("16sP16x", interface.encode(), info.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
        except OSError:  # gone meanwhile, or a driver without ethtool
            return ""
    return bytes(info[4:36]).split(b"\0", 1)[0].decode(errors="replace")
