"""What a bad path does to UDP datagrams beside losing them: doubles them, lets others overtake, cuts, flips bits.

Pure, with randomness from a seed. Checksums are made right again: a receiver's kernel would drop what is spoiled, and
the program would see no more than a loss. Whatever is no UDP datagram in one piece passes as it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from random import Random

from hive_qos.errors import ConfigurationError

LATE_FRAMES_MAX = 16
"""So many frames overtake a late one at most: more than QUIC takes for a loss (3, RFC 9002 6.1.1), and fewer."""

_ETHERNET_BYTES = 14
_IPV4, _IPV6 = 0x0800, 0x86DD
_UDP, _UDP_BYTES = 17, 8


@dataclass(frozen=True, kw_only=True)
class Spoiling:
    """Shares of datagrams, each 0 to 1 and together at most 1; none happens to the same datagram twice.

    Args:
        doubled: that arrive twice.
        late: that others overtake, `LATE_FRAMES_MAX` of them at most; the last one of all never arrives.
        cut: of which only the beginning arrives, at least a byte.
        flipped: of which one bit is another one.
    """

    doubled: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    flipped: float = 0.0

    def __post_init__(self) -> None:
        shares = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ConfigurationError(f"spoiling.{name}", share, "a share of 0 to 1 (0 % to 100 %)")
        if sum(shares.values()) > 1:
            raise ConfigurationError("spoiling", shares, "more than all datagrams together")


class Spoiler:
    """One direction of a link. `done` counts what was done, by the names of `Spoiling`'s fields."""

    __slots__ = ("_late", "_random", "done", "spoiling")

    def __init__(self, *, seed: int) -> None:
        self.spoiling = Spoiling()
        self.done = {field.name: 0 for field in fields(Spoiling)}
        self._random = Random(seed)
        self._late: list[tuple[int, bytes]] = []
        """Frames, each with how many are still to overtake it."""

    @property
    def idle(self) -> bool:
        """Whether frames pass as they are."""
        return not self._late and self.spoiling == _NOTHING

    def pass_on(self, frame: bytes) -> list[bytes]:
        """What goes on, in this order, now that `frame` has come."""
        passed = self._spoiled(frame)
        if self._late and passed:
            due = [late for left, late in self._late if left <= len(passed)]
            self._late = [(left - len(passed), late) for left, late in self._late if left > len(passed)]
            passed += due
        return passed

    def _spoiled(self, frame: bytes) -> list[bytes]:
        shares, random = self.spoiling, self._random
        if (at := payload_at(frame)) is None:
            return [frame]
        draw = random.random()
        for name in self.done:
            draw -= getattr(shares, name)
            if draw < 0:
                break
        else:
            return [frame]
        self.done[name] += 1
        match name:
            case "doubled":
                return [frame, frame]
            case "late":
                self._late.append((random.randint(1, LATE_FRAMES_MAX), frame))
                return []
            case "cut":
                return [with_payload(frame, frame[at : random.randint(at + 1, len(frame))])]
            case _:
                payload = bytearray(frame[at:])
                payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
                return [with_payload(frame, bytes(payload))]


_NOTHING = Spoiling()


def payload_at(frame: bytes) -> int | None:
    """Where the payload of the UDP datagram in an Ethernet frame begins; None where it has none, or is a fragment."""
    ip = _ETHERNET_BYTES
    if len(frame) < ip + 20 + _UDP_BYTES:
        return None
    kind = int.from_bytes(frame[12:14], "big")
    if kind == _IPV4:
        fragment = int.from_bytes(frame[ip + 6 : ip + 8], "big") & 0x3FFF  # "more fragments", and where this one begins
        udp = ip + (frame[ip] & 15) * 4
        if frame[ip + 9] != _UDP or fragment:
            return None
        end = ip + int.from_bytes(frame[ip + 2 : ip + 4], "big")
    elif kind == _IPV6:
        udp = ip + 40
        if frame[ip + 6] != _UDP:
            return None
        end = udp + int.from_bytes(frame[ip + 4 : ip + 6], "big")
    else:
        return None
    whole = end == len(frame) and udp + _UDP_BYTES < end  # short frames are padded: those have little to spoil
    return udp + _UDP_BYTES if whole else None


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """The frame with another payload in its UDP datagram: `payload_at` has found one there.

    Lengths and checksums are those of a datagram that was sent so (RFC 768, RFC 791, RFC 8200 8.1).
    """
    at = payload_at(frame)
    assert at is not None
    udp, ip = at - _UDP_BYTES, _ETHERNET_BYTES
    length = _UDP_BYTES + len(payload)
    header = bytearray(frame[:at])
    struct.pack_into("!HH", header, udp + 4, length, 0)
    if frame[ip] >> 4 == 4:
        struct.pack_into("!H", header, ip + 2, udp - ip + length)
        struct.pack_into("!H", header, ip + 10, 0)
        struct.pack_into("!H", header, ip + 10, internet_checksum(header[ip:udp]))
        pseudo = header[ip + 12 : ip + 20] + struct.pack("!HH", _UDP, length)
    else:
        struct.pack_into("!H", header, ip + 4, length)
        pseudo = header[ip + 8 : ip + 40] + struct.pack("!II", length, _UDP)
    checksum = internet_checksum(pseudo + header[udp:] + payload) or 0xFFFF  # 0 would say that there is none
    struct.pack_into("!H", header, udp + 6, checksum)
    return bytes(header) + payload


def internet_checksum(data: bytes | bytearray) -> int:
    """The internet checksum (RFC 1071): all 16-bit words, carries added at the end, inverted."""
    even = bytes(data) + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(even) // 2}H", even))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
