"""List the interfaces towards an address, with each one's carrier, reported speed and longest frame."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from broker.model.values import InterfaceSample
from hive_qos.errors import ShapingError

SYS = Path("/sys/class/net")
ROUTE_LIFE_S = 10.0
UNKNOWN_LIFE_S = 0.5
"""Until the kernel is asked again what it could not say: 1,000 connections ask ten times a second, 0.1 ms each."""
ROUTES_MAX = 4096
CHANGES_S, CHANGES_S_EACH = 1.0, 0.01
"""Between two looks at changed routes: a second at least, and 10 ms for each known address. To ask for it again takes
0.1 ms, so that a routing daemon that never rests costs 1 % of a core."""
LINKS_LIFE_S = 10.0
_READ_BYTES = 1 << 16
_RECEIVED, _SENT = 0, 8
"""Columns of /proc/net/dev."""
MTU_BYTES = 1500
"""Of an interface that is not there yet."""

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_ETHTOOL_GSET, _ETHTOOL_GDRVINFO = 0x1, 0x3
_LINK_SETTINGS_BYTES, _DRIVER_INFO_BYTES = 44, 196
_SPEED_UNKNOWN = (0xFFFF, 0xFFFFFFFF)
_NO_SPEED = ("veth", "tun", "bridge", "dummy", "ifb", "wireguard", "openvswitch")
"""Drivers that report an invented speed (veth 10 Gbit/s, tun 10 Mbit/s): it counts as unknown."""


class LinkState(Protocol):
    """A link: its interface's number, whether it has a carrier, and how often that has changed."""

    @property
    def number(self) -> int: ...
    @property
    def carrier(self) -> bool: ...
    @property
    def carrier_changes(self) -> int: ...


def lower(name: str, *, sys: Path = SYS) -> frozenset[str]:
    """What an interface stands on, at whatever distance: a VLAN's parent, a bridge's ports."""
    found: set[str] = set()
    look = [name]
    while look:
        try:
            entries = os.listdir(sys / look.pop())
        except OSError:
            continue
        below = {entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")} - found
        found |= below
        look += below
    return frozenset(found)


class Routes:
    """Which shaped interface leads to an address. Remembers until routes change, and for a while; for one thread.

    A route names the layer on top: the VLAN or bridge that has the address. Packets leave by the first shaped interface
    on the way down. Of a bridge's ports only the one that leads to the neighbour counts: what is sent to a virtual
    machine at another port says nothing about the uplink.

    Args:
        look_up: asks the kernel for the route to an address: an interface, and the neighbour there that takes packets.
        port_towards: asks the kernel for a bridge's port that leads to a route's neighbour.
        changed: whether routes have changed since it was last asked.
        sys: where the kernel shows what stands on what.
    """

    def __init__(
        self,
        look_up: Callable[[str], tuple[str, str] | None],
        port_towards: Callable[[str, tuple[str, str]], str],
        *,
        changed: Callable[[], bool] = lambda: False,
        sys: Path = SYS,
    ) -> None:
        self._look_up, self._port_towards, self._changed, self._sys = look_up, port_towards, changed, sys
        self._changes_s = float("-inf")  # before that, changes wait
        self._shaped: frozenset[str] = frozenset()
        # Each with the time until which it holds.
        self._known: dict[str, tuple[str | None, float]] = {}
        self._below: dict[str, tuple[frozenset[str], bool, float]] = {}  # what one stands on, whether it is a bridge
        self._ports: dict[tuple[str, tuple[str, str]], tuple[str | None, float]] = {}

    def interface_towards(self, address: str, *, shaped: frozenset[str], now_s: float) -> str | None:
        """Name the shaped interface that a packet to `address` leaves by; None when it is another, or not known yet."""
        if shaped != self._shaped:
            self._known.clear()
            self._shaped = shaped
        known = self._known.get(address)
        if known is None or now_s > known[1]:
            try:
                route = self._look_up(address)
                known = (None, now_s + ROUTE_LIFE_S) if route is None else self._leaves_by(route, now_s)
            except (ShapingError, OSError):  # no answer in time: count the flow nowhere meanwhile
                known = None, now_s + UNKNOWN_LIFE_S
            if len(self._known) >= ROUTES_MAX:
                self._known.clear()
            self._known[address] = known
        return known[0]

    def follow(self, *, now_s: float) -> None:
        """Forget what is known when the kernel's routes have changed; a former uplink would be blamed for delay
        elsewhere."""
        if now_s >= self._changes_s and self._changed():
            self._changes_s = now_s + max(CHANGES_S, CHANGES_S_EACH * len(self._known))
            self.forget()

    def forget(self) -> None:
        """Interfaces or routes have changed: ask again."""
        self._known.clear()
        self._below.clear()
        self._ports.clear()

    def _leaves_by(self, route: tuple[str, str], now_s: float) -> tuple[str | None, float]:
        name, until_s = route[0], now_s + ROUTE_LIFE_S
        while name not in self._shaped:
            below, bridge, holds_s = self._look_below(name, now_s)
            until_s = min(until_s, holds_s)
            port = next(iter(below)) if len(below) == 1 else None
            if bridge and len(below) > 1:
                port, holds_s = self._port(name, route, now_s)
                until_s = min(until_s, holds_s)
            if port not in below:  # the last one, a bond of several, not known yet, or the bridge for a neighbour here
                return None, until_s
            name = port
        return name, until_s

    def _look_below(self, name: str, now_s: float) -> tuple[frozenset[str], bool, float]:
        """Once for all addresses: a bridge has a port for each container."""
        known = self._below.get(name)
        if known is None or now_s > known[2]:
            try:
                entries = os.listdir(self._sys / name)
            except OSError:  # it is gone
                entries = []
            below = frozenset(entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_"))
            known = self._below[name] = below, "bridge" in entries, now_s + ROUTE_LIFE_S
        return known

    def _port(self, bridge: str, route: tuple[str, str], now_s: float) -> tuple[str | None, float]:
        """Once for all addresses behind a gateway."""
        known = self._ports.get((bridge, route))
        if known is None or now_s > known[1]:
            try:
                known = self._port_towards(bridge, route), now_s + ROUTE_LIFE_S
            except (ShapingError, OSError):  # the neighbour is not resolved, or has not sent yet
                known = None, now_s + UNKNOWN_LIFE_S
            if len(self._ports) >= ROUTES_MAX:
                self._ports.clear()
            self._ports[bridge, route] = known
        return known


class InterfaceCounters:
    """What came in and left through each interface of our network namespace. The file stays open: to look it up again
    in each tick costs as much as to read it."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/net/dev", os.O_RDONLY | os.O_CLOEXEC)

    def received_bytes(self) -> dict[str, int]:
        """What came in, cumulative."""
        return self._column(_RECEIVED)

    def sent_bytes(self) -> dict[str, int]:
        """What left, cumulative."""
        return self._column(_SENT)

    def _column(self, number: int) -> dict[str, int]:
        data = b""
        while part := os.pread(self._file, _READ_BYTES, len(data)):
            data += part
        lines = data.decode("utf-8", "surrogateescape").split("\n")[2:]  # proc_pid_net(5): two lines of headings
        entries = (line.rpartition(":") for line in lines if line)
        return {name.strip(): int(counters.split(None, number + 1)[number]) for name, _, counters in entries}

    def close(self) -> None:
        os.close(self._file)


class Links:
    """What kernel and drivers report of links. Cached for a while; for one thread.

    A driver without a carrier reports no speed, or any. The last one with a carrier counts meanwhile, as long as the
    interface is the same: a cable that is pulled and put back is the same link.

    Args:
        look: reads the state of an interface's link from the kernel.
    """

    def __init__(self, look: Callable[[str], LinkState | None]) -> None:
        self._link = look
        self._known: dict[str, tuple[float, InterfaceSample]] = {}  # with the time of the look
        self._speeds: dict[str, tuple[int, int]] = {}  # by name: number of the interface, its last speed with a carrier

    def forget(self) -> None:
        """Links have changed: ask again."""
        self._known.clear()

    def look(self, interface: str, *, now_s: float) -> InterfaceSample:
        """Read the link of one interface alone: a read of all of them fails at a name that is not text.

        Returns:
            A sample without counters, of the speed, the MTU and the carrier. The speed is the last one while there is
            no carrier, None where the driver reports none that means anything.
        """
        read_s, known = self._known.get(interface, (float("-inf"), InterfaceSample(interface)))
        if now_s - read_s > LINKS_LIFE_S:
            try:
                link = self._link(interface)
            except (ShapingError, OSError):  # no answer in time: ask again when this is old
                link = None
            speed = speed_mbit_per_s_of(interface)
            means = speed > 0 and driver_of(interface) not in _NO_SPEED
            reported = speed * 1_000_000 if means else None
            known = InterfaceSample(
                name=interface,
                link_bits_per_s=reported if link is None else self._lasting(interface, link, reported),
                mtu_bytes=mtu_bytes_of(interface),
                carrier=None if link is None else link.carrier,
                carrier_changes=None if link is None else link.carrier_changes,
            )
            self._known[interface] = now_s, known
        return known

    def _lasting(self, interface: str, link: LinkState, reported_bits_per_s: int | None) -> int | None:
        """The speed that the driver reports now, or reported last with a carrier, for the same interface."""
        if link.carrier:
            self._speeds.pop(interface, None)
            if reported_bits_per_s is not None:
                self._speeds[interface] = link.number, reported_bits_per_s
            return reported_bits_per_s
        number, last_bits_per_s = self._speeds.get(interface, (0, 0))
        return last_bits_per_s if number == link.number else reported_bits_per_s


def driver_of(interface: str) -> str:
    """The driver's name as ethtool shows it, "" where the interface has none."""
    return _ethtool(interface, _ETHTOOL_GDRVINFO, _DRIVER_INFO_BYTES)[4:36].split(b"\0", 1)[0].decode(errors="replace")


def speed_mbit_per_s_of(interface: str) -> int:
    """The link's speed as the driver reports it, 0 where it reports none (struct ethtool_cmd: in two halves)."""
    low, high = struct.unpack_from("=H14xH", _ethtool(interface, _ETHTOOL_GSET, _LINK_SETTINGS_BYTES), 12)
    speed = high << 16 | low
    return 0 if speed in _SPEED_UNKNOWN else speed


def mtu_bytes_of(interface: str) -> int:
    """The longest packet that an interface takes; Ethernet's for one that is gone."""
    request = bytearray(struct.pack("16si20x", interface.encode(), 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCGIFMTU, request)
        except OSError:
            return MTU_BYTES
    return int(struct.unpack_from("=i", request, 16)[0])


def _ethtool(interface: str, command: int, size_bytes: int) -> bytes:
    """One answer of the driver; zeros from one that has none, or that is gone meanwhile."""
    info = array.array("B", struct.pack("=I", command) + bytes(size_bytes - 4))
    request = struct.pack("16sP16x", interface.encode(), info.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
        except OSError:
            return bytes(size_bytes)
    return bytes(info)
