"""The UDP socket of an endpoint: how much may wait in the kernel behind it, and what happens to the rest."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from transport.engine.aioquic.udp_socket import BATCH_MAX, BATCH_MIN, SEND_BUFFER_BYTES, SEND_BUFFER_BYTES_MIN, UdpPort


@pytest.fixture
def port() -> Iterator[UdpPort]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    yield UdpPort(sock)
    sock.close()


def buffer_bytes(port: UdpPort) -> int:
    """What was asked for; the kernel doubles it for its own overhead (socket(7))."""
    return port.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2


def test_the_send_buffer_holds_8_ms_of_what_is_delivered(port: UdpPort) -> None:
    for _ in range(200):
        port.fit(2.5e6)
    assert buffer_bytes(port) == pytest.approx(20_000, rel=0.3)
    for _ in range(200):
        port.fit(1e9)
    assert buffer_bytes(port) >= 0.7 * min(SEND_BUFFER_BYTES, largest_buffer())
    assert port.batch == BATCH_MAX
    for _ in range(400):
        port.fit(0.0)
    assert buffer_bytes(port) == pytest.approx(SEND_BUFFER_BYTES_MIN, rel=0.3)
    assert port.batch == BATCH_MIN


def largest_buffer() -> int:
    with open("/proc/sys/net/core/wmem_max") as file:
        return int(file.read())


def test_the_buffer_grows_at_once_and_shrinks_in_seconds(port: UdpPort) -> None:
    for _ in range(400):
        port.fit(0.0)
    port.fit(10e6)
    assert buffer_bytes(port) == pytest.approx(80_000, rel=0.01)
    for _ in range(5):  # the gap between two bursts of a step
        port.fit(0.0)
    assert buffer_bytes(port) == pytest.approx(80_000, rel=0.01)


def test_what_the_kernel_has_no_room_for_is_sent_later_and_in_order(port: UdpPort) -> None:
    class Full:
        """A socket that takes three datagrams, then none until told."""

        def __init__(self) -> None:
            self.sent: list[bytes] = []
            self.room = 3

        def sendto(self, data: bytes, _address: object) -> None:
            if not self.room:
                raise BlockingIOError
            self.room -= 1
            self.sent.append(data)

    full = Full()
    real, port.sock = port.sock, full  # type: ignore[assignment]
    port._segments = False
    datagrams = [(bytes([number]), ("127.0.0.1", 9)) for number in range(8)]
    port.send(datagrams[:5])
    port.send(datagrams[5:])
    assert [data for data, _ in port.waiting] == [bytes([number]) for number in range(3, 8)]
    full.room = 100
    port.flush()
    assert full.sent == [bytes([number]) for number in range(8)]
    assert not port.waiting
    port.sock = real
