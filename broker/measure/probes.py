"""Active probes, where the operator asks for them: ICMP echoes to a few hosts. They show delay elsewhere even while
this host's own connections are idle, or lead to one destination only.

Off without `[probe]`. Bounded: `TARGETS_MAX` targets, one small packet each at most every `INTERVAL_S_MIN`, in class
`control`, so that our own queue is not what they measure. A probe tells of delay alone. Its loss says nothing (a router
answers when it has time), nor how fast the path is.

The echoes (RFC 792, RFC 4443) go through a "ping socket" (icmp(7): SOCK_DGRAM, for the groups in
net.ipv4.ping_group_range), which needs no capability. The kernel fills in identifier and checksum, and hands over
replies with that identifier alone.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from broker.events.log import Log
from broker.model.addresses import plain
from broker.model.values import Alarm, FlowSample
from broker.policy.types import ProbePolicy
from hive_qos.errors import HiveError

SILENT_S = 10.0
"""A target that has answered nothing for so long is an alarm."""
RETRY_S = 60.0
FORGET_S = 10.0
"""An answer that is older is not handed on."""
LEAST_S = 30.0
"""The least round trip is that of the last `LEAST_S` to twice that. A wall clock that is set forward by less than a
round trip, while a reply waits to be read, makes that one too short. Nothing shows it."""
REQUEST, REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
HEADER = struct.Struct("!BBHHH")
PAYLOAD_BYTES = 32
"""A token of the sender's. With the headers of ICMP and IPv6, a request is 80 bytes on the wire before Ethernet."""
READS_MAX = 64
"""Packets read at once: a flood of forged replies must not delay a tick."""
_TIMESTAMP = getattr(socket, "SO_TIMESTAMPNS", 35)  # asm-generic/socket.h, where Python does not name it
_TIMESPEC = struct.Struct("@ll")


@dataclass
class _Target:
    address: str
    version: int
    interface: str | None = None
    since_s: float = 0.0
    due_s: float = 0.0
    sequence: int = 0
    answered: int = 0
    rtt_s: float | None = None
    least_s: tuple[float, float] = (math.inf, math.inf)
    least_since_s: float = 0.0
    answered_s: float | None = None
    waiting: dict[int, float] = field(default_factory=dict)

    def answer(self, rtt_s: float, *, arrived_s: float) -> None:
        """Book a round trip. `least_s` is of this part of `LEAST_S` and of the one before."""
        self.answered += 1
        self.answered_s, self.rtt_s = arrived_s, rtt_s
        parts = (arrived_s - self.least_since_s) // LEAST_S
        if parts >= 1:
            self.least_s = (math.inf, self.least_s[0] if parts < 2 else math.inf)
            self.least_since_s += parts * LEAST_S
        self.least_s = (min(rtt_s, self.least_s[0]), self.least_s[1])


class Probes:
    """For the loop's thread.

    Args:
        mark: puts a socket into class `control`.
        clock, wall: monotonic seconds, and the wall clock's, by which the kernel stamps replies.
    """

    def __init__(
        self,
        *,
        mark: Callable[[socket.socket], None],
        log: Log,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._mark, self._log, self._clock, self._wall = mark, log, clock, wall
        self._sockets: dict[int, EchoSocket] = {}
        self._problem, self._tried_s = "", float("-inf")
        self._token = os.urandom(PAYLOAD_BYTES)
        self._targets: dict[str, _Target] = {}
        self._settings: ProbePolicy | None = None

    def _follow(self, settings: ProbePolicy | None, *, now_s: float) -> None:
        """Take a changed configuration; what is known of targets that stay is kept."""
        self._settings = settings
        addresses = settings.targets if settings is not None else ()
        self._targets = {one: self._targets.get(one) or _target(one, now_s=now_s) for one in addresses}
        self._tried_s = float("-inf")
        if not self._targets:
            self.close()

    def go(self, settings: ProbePolicy | None, *, interface_of: Callable[[str], str | None], now_s: float) -> None:
        """Take in what has come, and send what is due. Call it every tick.

        Args:
            settings: `[probe]` of the configuration in force.
            interface_of: the shaped interface towards an address; a target behind none of them is left alone.
        """
        if settings != self._settings:
            self._follow(settings, now_s=now_s)
        if self._settings is None or not self._open(now_s=now_s):
            return
        for echo in self._sockets.values():
            for reply in echo.replies():
                target = self._targets.get(reply.address)
                if target is not None and reply.payload == self._token:
                    self._take(target, reply.sequence, reply.arrived_wall_s)
        for target in self._targets.values():
            if now_s < target.due_s:
                continue
            target.due_s = max(target.due_s + self._settings.interval_s, now_s + 0.5 * self._settings.interval_s)
            target.interface = interface_of(target.address)
            if target.interface is not None:
                self._send(target)

    def samples(self, *, now_s: float) -> Mapping[str, tuple[FlowSample, ...]]:
        """The targets' last answers, by interface."""
        found: dict[str, list[FlowSample]] = {}
        for target in self._targets.values():
            if target.interface is None or target.answered_s is None or now_s - target.answered_s > FORGET_S:
                continue
            sample = FlowSample(
                key=f"probe/{target.address}",
                peer=target.address,
                traffic_class="control",
                source="probe",
                age_s=max(0.0, now_s - target.answered_s),
                rtt_latest_s=target.rtt_s,
                rtt_s_min=min(target.least_s),
                delivered_bytes=target.answered * PAYLOAD_BYTES,
                application_limited=True,
            )
            found.setdefault(target.interface, []).append(sample)
        return {interface: tuple(samples) for interface, samples in found.items()}

    def alarms(self) -> tuple[Alarm, ...]:
        """What keeps probes from telling anything."""
        if self._settings is None:
            return ()
        if self._problem:
            return (Alarm("probes-unavailable", "probe", self._problem),)
        now_s, found = self._clock(), []
        for target in self._targets.values():
            heard_s = target.answered_s if target.answered_s is not None else target.since_s
            if target.interface is None and target.due_s > 0:
                text = f"{target.address} is not reached through a shaped interface; it is not probed"
                found.append(Alarm("probe-elsewhere", f"probe/{target.address}", text))
            elif now_s - heard_s > SILENT_S:
                text = (
                    f"{target.address} has not answered an ICMP echo for {SILENT_S:g} s; name a host that does, or "
                    "take it off [probe] targets"
                )
                found.append(Alarm("probe-unanswered", f"probe/{target.address}", text))
        return tuple(found)

    def close(self) -> None:
        """Close the sockets."""
        for echo in self._sockets.values():
            echo.close()
        self._sockets = {}

    def _open(self, *, now_s: float) -> bool:
        wanted = {target.version for target in self._targets.values()}
        if wanted <= self._sockets.keys():
            return True
        if now_s - self._tried_s < RETRY_S:
            return False
        self._tried_s = now_s
        try:
            for version in sorted(wanted - self._sockets.keys()):
                echo = EchoSocket(version)
                self._sockets[version] = echo
                self._mark(echo.socket)
        except (HiveError, OSError) as problem:
            self.close()
            text = (
                f"no socket for ICMP echoes: {problem}; set net.ipv4.ping_group_range to hold the daemon's group "
                "(hive-qos-sysctl.conf has the line); tried again every minute"
            )
            if text != self._problem:
                self._log.error("probes-unavailable", error=text)
            self._problem = text
            return False
        self._problem = ""
        return True

    def _send(self, target: _Target) -> None:
        target.sequence = (target.sequence + 1) & 0xFFFF
        sent_s = self._clock()
        if self._sockets[target.version].send(target.address, sequence=target.sequence, payload=self._token):
            target.waiting = {number: at_s for number, at_s in target.waiting.items() if sent_s - at_s < SILENT_S}
            target.waiting[target.sequence] = sent_s

    def _take(self, target: _Target, sequence: int, arrived_wall_s: float | None) -> None:
        sent_s = target.waiting.pop(sequence, None)
        if sent_s is None:
            return  # a duplicate, or too late
        read_s = self._clock()
        arrived_s = read_s - (self._wall() - arrived_wall_s) if arrived_wall_s is not None else read_s
        if not sent_s < arrived_s <= read_s:
            return  # the wall clock was set meanwhile, by more than the round trip
        if target.answered_s is not None and arrived_s <= target.answered_s:
            return
        target.answer(arrived_s - sent_s, arrived_s=arrived_s)


def _target(address: str, *, now_s: float) -> _Target:
    return _Target(address, ipaddress.ip_address(address).version, since_s=now_s)


class EchoReply(Struct, frozen=True):
    """An echo's reply. `arrived_wall_s` is when the kernel received it, by the wall clock; None without a timestamp."""

    address: str
    sequence: int
    payload: bytes
    arrived_wall_s: float | None


class EchoSocket:
    """Requests and replies of one address family (4 or 6). Never blocks.

    Raises:
        OSError: the kernel does not allow it (EACCES), or not the family.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
        self.socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)

    def send(self, address: str, *, sequence: int, payload: bytes) -> bool:
        """Send one request; False when it could not leave now (no route, or a full queue), which is no error."""
        packet = HEADER.pack(REQUEST[self._version], 0, 0, 0, sequence) + payload
        try:
            self.socket.sendto(packet, (address, 0))
        except OSError:
            return False
        return True

    def replies(self) -> Iterator[EchoReply]:
        """What has come since, `READS_MAX` at most; anything that is no reply is passed over."""
        for _ in range(READS_MAX):
            try:
                data, ancillary, _, source = self.socket.recvmsg(512, 64)
            except BlockingIOError:
                return
            except OSError as problem:  # an ICMP error about an earlier request is handed over this way
                if problem.errno in (errno.EBADF, errno.ENOTSOCK):
                    raise
                continue
            if len(data) < HEADER.size:
                continue
            kind, _, _, _, sequence = HEADER.unpack_from(data)
            if kind == REPLY[self._version]:
                yield EchoReply(plain(source[0]), sequence, data[HEADER.size :], _arrival(ancillary))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _arrival(ancillary: list[tuple[int, int, bytes]]) -> float | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _TIMESTAMP and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds + nanoseconds / 1e9)
    return None
