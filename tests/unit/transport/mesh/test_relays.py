"""Packets of two ends are passed on between them, and nobody else's."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from transport.mesh.relays import PAIRS_MAX, Relays
from transport.mesh.sockets import Sockets

ENDS = ("127.0.0.2", "127.0.0.3")
LIMIT_S = 10.0


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays((), lambda _sockets: None)
    yield made
    made.close()


def end(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.settimeout(LIMIT_S)
    return sock


@pytest.mark.parametrize("bulk", [False, True])
def test_each_end_gets_what_the_other_sends_and_nothing_of_a_third(relays: Relays, bulk: bool) -> None:
    sockets = relays.between((0, 1), ENDS)
    assert sockets is not None
    there = ("127.0.0.1", sockets.bulk_port if bulk else sockets.compute_port)
    with end(ENDS[0]) as one, end(ENDS[1]) as other, end("127.0.0.4") as third:
        one.sendto(b"before the other one is known", there)
        third.sendto(b"I am the other one", there)
        other.sendto(b"here I am", there)
        assert one.recvfrom(100) == (b"here I am", there)
        packets = [bytes([number]) * 1200 for number in range(200)]
        for packet in packets:
            one.sendto(packet, there)
            assert other.recv(2000) == packet


def test_who_comes_from_another_port_is_answered_there(relays: Relays) -> None:
    sockets = relays.between((0, 1), ENDS)
    assert sockets is not None
    there = ("127.0.0.1", sockets.compute_port)
    with end(ENDS[0]) as one, end(ENDS[1]) as other, end(ENDS[1]) as moved:
        for now in (other, moved):
            now.sendto(b"here", there)
            one.sendto(b"there", there)
            assert now.recv(100) == b"there"


def test_a_pair_keeps_its_sockets_and_there_are_so_many_pairs(relays: Relays) -> None:
    first = relays.between((0, 1), ENDS)
    assert relays.between((0, 1), ENDS) is first
    pairs = [relays.between((0, number), ENDS) for number in range(2, PAIRS_MAX + 2)]
    assert None not in pairs[:-1]
    assert pairs[-1] is None
    assert relays.between((0, 1), ENDS) is first


@pytest.mark.parametrize("ends", [("127.0.0.2", "127.0.0.2"), ("127.0.0.2", "::1")], ids=str)
def test_there_is_no_way_between_these(relays: Relays, ends: tuple[str, str]) -> None:
    assert relays.between((0, 1), ends) is None


def test_its_sockets_have_the_ports_that_are_allowed_and_who_reads_the_log_hears_where_none_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with end("127.0.0.1") as taken:
        port = taken.getsockname()[1]
        opened: list[Sockets] = []
        relays = Relays(range(port, port + 2), opened.append)
        with caplog.at_level(logging.WARNING):
            assert relays.between((0, 1), ENDS) is None
        assert opened == []
        assert "nor through this rank: [configuration] HIVE_PORTS" in caplog.text


def test_nothing_is_left_at_the_end() -> None:
    relays = Relays((), lambda _sockets: None)
    relays.close()
    sockets = relays.between((0, 1), ENDS)
    assert sockets is not None
    relays.close()
    relays.close()
    assert sockets.compute.fileno() == sockets.bulk.fileno() == -1
    assert not [one for one in threading.enumerate() if one.name == "hive-relay"]
