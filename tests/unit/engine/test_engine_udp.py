"""The UDP socket of an endpoint: what happens to what the kernel has no room for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from transport.engine.aioquic.udp_socket import UdpPort


@pytest.fixture
def port() -> Iterator[UdpPort]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    yield UdpPort(sock)
    sock.close()


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
    datagrams = [(bytes([number]), ("127.0.0.1", 9)) for number in range(8)]
    port.send(datagrams[:5])
    port.send(datagrams[5:])
    assert [data for data, _ in port.waiting] == [bytes([number]) for number in range(3, 8)]
    full.room = 100
    port.send([])
    assert full.sent == [bytes([number]) for number in range(8)]
    assert not port.waiting
    port.sock = real
