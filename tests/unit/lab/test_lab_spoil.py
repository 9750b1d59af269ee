"""What the relay does to datagrams on a bad path, and that what it leaves behind is a datagram still."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from hive_qos.errors import ConfigurationError
from tools.lab.spoil import LATE_FRAMES_MAX, Spoiler, Spoiling, payload_at, with_payload


def datagram(payload: bytes, *, six: bool = False, protocol: int = 17) -> bytes:
    """An Ethernet frame with a UDP datagram, whose checksums are right."""
    udp = struct.pack("!HHHH", 4000, 5000, 8 + len(payload), 0)
    if six:
        ip = struct.pack("!IHBB", 6 << 28, len(udp) + len(payload), protocol, 64) + bytes(range(32))
    else:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 7, 0x4000, 64, protocol, 0) + bytes(range(8))
    frame = bytes(12) + (b"\x86\xdd" if six else b"\x08\x00") + ip + udp + payload
    return with_payload(frame, payload) if protocol == 17 and payload else frame


def is_right(frame: bytes) -> bool:
    """As a receiver sees it: sums over what a checksum protects give all ones, and lengths are those of the frame."""

    def folded(data: bytes) -> int:
        words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2))
        return sum(words) % 0xFFFF  # all ones, and only they, leave nothing (RFC 1071 2)

    if frame[12:14] == b"\x86\xdd":
        pseudo, udp = frame[22:54] + struct.pack("!II", len(frame) - 54, 17), frame[54:]
        lengths = {int.from_bytes(frame[18:20], "big"), int.from_bytes(udp[4:6], "big")} == {len(udp)}
        return lengths and folded(pseudo + udp) == 0
    ip, udp = frame[14:34], frame[34:]
    pseudo = ip[12:20] + struct.pack("!HH", 17, len(udp))
    lengths = (int.from_bytes(ip[2:4], "big"), int.from_bytes(udp[4:6], "big")) == (20 + len(udp), len(udp))
    return lengths and folded(ip) == 0 and folded(pseudo + udp) == 0


def numbered(count: int, *, six: bool) -> Iterator[bytes]:
    for number in range(count):
        yield datagram(number.to_bytes(4, "big") + bytes(100), six=six)


def passed(frames: Iterator[bytes], **shares: float) -> tuple[list[bytes], dict[str, int]]:
    spoiler = Spoiler(seed=3)
    spoiler.spoiling = Spoiling(**shares)
    return [out for frame in frames for out in spoiler.pass_on(frame)], spoiler.done


@pytest.mark.parametrize("six", [False, True])
def test_every_kind_happens_as_often_as_was_said_and_leaves_datagrams_that_a_kernel_takes(six: bool) -> None:
    shares = {"doubled": 0.1, "late": 0.1, "cut": 0.1, "flipped": 0.1}
    frames, done = passed(numbered(4000, six=six), **shares)
    # 4000 draws at 0.1 each: mean 400, standard deviation 19; five of those.
    assert all(305 <= count <= 495 for count in done.values()), done
    assert len(frames) >= 4000 + done["doubled"] - LATE_FRAMES_MAX
    assert all(is_right(frame) for frame in frames)


def test_doubled_ones_arrive_twice_and_cut_ones_are_beginnings() -> None:
    sent = list(numbered(500, six=False))
    frames, done = passed(iter(sent), doubled=0.5)
    assert [frame for index, frame in enumerate(frames) if index == 0 or frames[index - 1] != frame] == sent
    assert len(frames) == 500 + done["doubled"]
    frames, done = passed(iter(sent), cut=1.0)
    at = 42
    assert all(0 < len(short) - at <= len(whole) - at for short, whole in zip(frames, sent, strict=True))
    assert all(whole[at:].startswith(short[at:]) for short, whole in zip(frames, sent, strict=True))
    assert len({len(frame) for frame in frames}) > 50
    assert done["cut"] == 500


def test_late_ones_are_overtaken_by_a_few_and_none_is_lost_but_those_at_the_end() -> None:
    sent = list(numbered(1000, six=False))
    frames, done = passed(iter(sent), late=0.2)
    order = [int.from_bytes(frame[42:46], "big") for frame in frames]
    assert len(set(order)) == len(order) >= 1000 - LATE_FRAMES_MAX
    overtaken = [sum(one > number for one in order[:place]) for place, number in enumerate(order)]
    assert sum(count > 0 for count in overtaken) >= done["late"] / 2
    # Those that come late themselves pass one that waits, too.
    assert max(overtaken) <= 2 * LATE_FRAMES_MAX


def test_one_bit_of_the_payload_is_flipped_and_nothing_else_but_the_checksum() -> None:
    sent = list(numbered(300, six=False))
    for frame, whole in zip(passed(iter(sent), flipped=1.0)[0], sent, strict=True):
        differing = [one ^ other for one, other in zip(frame[42:], whole[42:], strict=True) if one != other]
        assert len(differing) == 1
        assert differing[0].bit_count() == 1
        assert frame[:40] == whole[:40]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(60),
        datagram(b"x" * 30, protocol=6),
        datagram(b"x" * 30, six=True, protocol=58),
        datagram(b""),
        datagram(b"short") + bytes(13),  # padded to the least that Ethernet sends
        datagram(b"x" * 30)[:20] + b"\x20\x00" + datagram(b"x" * 30)[22:],  # more fragments follow
    ],
    ids=["nothing", "no protocol", "TCP", "ICMPv6", "no payload", "padded", "a fragment"],
)
def test_what_is_no_whole_datagram_passes_as_it_is(frame: bytes) -> None:
    assert payload_at(frame) is None
    assert passed(iter([frame] * 50), flipped=1.0) == ([frame] * 50, dict.fromkeys(Spoiler(seed=1).done, 0))


@pytest.mark.parametrize("shares", [{"cut": -0.1}, {"late": 1.5}, {"doubled": 0.6, "flipped": 0.6}])
def test_shares_that_cannot_be_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="spoiling"):
        Spoiling(**shares)
