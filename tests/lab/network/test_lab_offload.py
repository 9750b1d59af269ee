"""A link with offload: whole lumps cross it, after its delay; what needs single frames is refused."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from lab_traffic import FRAME_BYTES, Pinger, arrived, flow, piece_bytes
from patience import most_of

from hive_qos.errors import ConfigurationError
from tools.lab import Lab, relay
from tools.lab.spoil import Spoiling

RATE_BITS_PER_S = 400_000_000
"""The bucket holds 150 kB, more than two lumps: it cuts none."""
LUMP_BYTES_MIN = 8 * FRAME_BYTES
"""What crosses in one piece on average, where the sender builds lumps: far more than a frame, far less than 64 KiB."""
UDP_SEGMENT, UDP_GRO = 103, 104
SIOCETHTOOL, ETHTOOL_GTSO = 0x8946, 0x1E
SEGMENT_BYTES = 1400
MESSAGE = random.Random(1).randbytes(40 * SEGMENT_BYTES + 77)
STRAY_MAX = 5
"""Packets of the kernel's own that may cross meanwhile, such as reports of multicast groups."""


@pytest.fixture(scope="module")
def offloading() -> Iterator[Lab]:
    """Host a's ways: to b over the relay, with 5 ms each way; to c over plain devices; to d as without offload; and to
    e over the relay to a router that sends frames on."""
    with Lab("offload") as lab:
        for name in "abcde":
            lab.host(name, congestion="cubic")
        lab.router("r")
        lab.link("a", "b", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.005, carrier="relay", offload=True)
        lab.link("a", "c", rate_bits_per_s=RATE_BITS_PER_S, offload=True)
        lab.link("a", "d", rate_bits_per_s=RATE_BITS_PER_S)
        lab.link("a", "r", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.001, carrier="relay", offload=True)
        lab.link("r", "e")
        yield lab.up()


def tcp_piece_bytes(lab: Lab, receiver: str) -> float:
    link = lab.links[f"a-{receiver}"]
    with flow(lab["a"], lab[receiver]) as running:
        return piece_bytes(lab[receiver], lambda: running.share(link, RATE_BITS_PER_S))


def test_the_round_trip_is_twice_the_delay_and_follows_it(offloading: Lab) -> None:
    link = offloading.links["a-b"]
    try:
        with Pinger(offloading["a"], offloading["b"]) as pinger:
            pinger.has_rtt_s(0.010)
            link.set_delay(0.015)
            pinger.has_rtt_s(0.030)
            assert link.path() == (0.015, 0)
    finally:
        link.set_delay(0.005)


@pytest.mark.parametrize(("receiver", "medium"), [("b", "relay"), ("c", "veth")])
def test_tcp_crosses_in_lumps_and_gets_nearly_all_of_the_rate(offloading: Lab, receiver: str, medium: str) -> None:
    link = offloading.links[f"a-{receiver}"]
    assert link.medium == medium
    most_of(lambda: tcp_piece_bytes(offloading, receiver), lambda found: found >= LUMP_BYTES_MIN)
    with flow(offloading["a"], offloading[receiver]) as running:
        most_of(lambda: running.share(link, RATE_BITS_PER_S), lambda share: share >= 0.9)
    counters = link.counters()["a"]
    # The bucket counts the frames that lumps stand for, and each one's header.
    assert counters.bytes / counters.packets <= FRAME_BYTES


def test_a_link_beside_one_with_offload_carries_frames_still(offloading: Lab) -> None:
    # Bytes and pieces are not read in the same instant: a frame or two of a hundred may be between.
    assert tcp_piece_bytes(offloading, "d") <= 1.02 * FRAME_BYTES


def test_a_router_cuts_lumps_for_a_link_without_offload(offloading: Lab) -> None:
    link, e = offloading.links["a-r"], offloading["e"]
    with flow(offloading["a"], e) as running:
        most_of(lambda: running.share(link, RATE_BITS_PER_S), lambda share: share >= 0.9)
        # Half a second of the flow, which goes on by itself: some 2,000 frames.
        assert piece_bytes(e, lambda: time.sleep(0.5)) <= 1.02 * FRAME_BYTES


@pytest.mark.parametrize("refused", [0, 1 << 30], ids=["a kernel of today", "one before lumps of UDP"])
def test_a_device_takes_lumps_of_tcp_whatever_the_kernel_knows(
    offloading: Lab, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    monkeypatch.setattr(relay, "_TUN_F_UDP", relay._TUN_F_UDP | refused)
    with offloading["a"].enter(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        tap = relay.open_tap("lumps0", offload=True)
        try:
            asked = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_GTSO, 0))
            fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", b"lumps0", ctypes.addressof(asked)))
        finally:
            os.close(tap)
    assert struct.unpack("II", asked.raw[:8])[1] == 1


@pytest.mark.parametrize("joined", [False, True], ids=["single datagrams", "joined again"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_udp_lump_crosses_the_relay_whole_and_arrives_as_it_was_sent(
    offloading: Lab, family: socket.AddressFamily, joined: bool
) -> None:
    a, b = offloading["a"], offloading["b"]
    address = b.address if family == socket.AF_INET else b.address6
    with a.enter():
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with b.enter():
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind((address, 5003))
        receiver.settimeout(30)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, int(joined))
        _, before = arrived(b)
        segment = SEGMENT_BYTES.to_bytes(2, "little")
        sender.sendmsg([MESSAGE], [(socket.IPPROTO_UDP, UDP_SEGMENT, segment)], 0, (address, 5003))
        parts = [receiver.recv(2**16)]
        while sum(map(len, parts)) < len(MESSAGE):
            parts.append(receiver.recv(2**16))
        _, after = arrived(b)
    assert b"".join(parts) == MESSAGE
    assert len(parts) == (1 if joined else 41)
    assert after - before <= 1 + STRAY_MAX


@pytest.mark.parametrize("name", ["a-b", "a-c"])
def test_what_happens_to_single_frames_is_refused(offloading: Lab, name: str) -> None:
    link = offloading.links[name]
    with pytest.raises(ConfigurationError, match=rf"link\.{name}\.loss = 0\.1: a link with offload carries lumps"):
        link.set_loss(0.1)
    with pytest.raises(ConfigurationError, match=rf"link\.{name}\.spoiling .* a link with offload carries lumps"):
        link.set_spoiling(Spoiling(late=0.1))
    link.set_loss(0)
    assert link.path()[1] == 0
