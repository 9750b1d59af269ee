"""Connections between two engines over real UDP: over which paths they live, when they die, and what they measure."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import Any

import pytest
from aioquic.tls import Epoch
from engine_relay import rough, silent, straight
from engine_support import (
    QUICK,
    ConnectionDown,
    WrappedSocket,
    bound_socket,
    connected,
    engines,
    over,
    pair,
    pytest_generate_tests,
    relayed,
)
from patience import LIMIT_S, most_of, wait_until

from hive_qos.errors import ConnectionLostError
from transport.engine.base import EngineSettings, Received, SendDone
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests"]


def test_a_goodbye_fails_waiting_posts_and_names_the_peer() -> None:
    with connected() as (a, b, up, _):
        post = b.post("a", None)
        later = b.post("a", None, tag=1)  # taken after the first one, so that both are there when it closes
        a.send(up, b"x", tag=1)
        b.outcome(later)
        a.engine.close()
        down = b.take(ConnectionDown)
        assert down.error is None
        error = b.outcome(post).error
        assert isinstance(error, ConnectionLostError)
        assert error.peer == "a"


def test_a_peer_that_falls_silent_is_declared_dead_and_named() -> None:
    with relayed(straight, settings=QUICK) as (_a, b, _up, _, relay):
        post = b.post("a", None)
        relay.fate = silent
        down = b.take(ConnectionDown)
        assert isinstance(down.error, ConnectionLostError)
        assert "nothing heard" in str(down.error)
        assert down.peer == "a"
        assert isinstance(b.outcome(post).error, ConnectionLostError)


@pytest.mark.parametrize("first", [0xC0, 0x40])
def test_forged_datagrams_do_not_keep_a_silent_peer_alive(first: int) -> None:
    with relayed(straight, settings=QUICK) as (a, b, up, _, relay):
        a.outcome(a.send(up, b"so that the last datagram has a short header"))
        identifier = relay.to_server[1:9]
        head = bytes([first]) + (b"\x00\x00\x00\x01\x08" if first & 0x80 else b"") + identifier
        relay.fate = silent
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:

            def found_dead() -> ConnectionDown | None:
                forger.sendto(head + bytes(1200), b.address)
                relay.forge(head + bytes(1200))
                return b.find(ConnectionDown)

            down = wait_until(found_dead, what=lambda: "it still counts as alive", pause_s=0.05)
        assert "nothing heard" in str(down.error)


@over(("native", "native"))  # the portable engine does not ask the kernel for it
def test_a_peer_whose_host_says_that_nobody_listens_is_gone_long_before_it_counts_as_dead() -> None:
    with relayed(straight, settings=EngineSettings(keep_alive_s=0.2, dead_after_s=600.0)) as (a, b, up, _, relay):
        a.outcome(a.send(up, b"so that the last datagram has a short header"))
        relay.close()
        for one in (a, b):
            down = one.take(ConnectionDown)
            assert down.gone
            assert isinstance(down.error, ConnectionLostError)
            assert "nobody listens at 127.0.0.1" in str(down.error)


@over(("native", "native"))
@pytest.mark.parametrize("quoted", ["what was sent", "another identifier", "too little", "what was sent, by a router"])
def test_only_a_host_that_quotes_what_was_sent_is_believed_that_it_was_refused(quoted: str) -> None:
    with relayed(straight, settings=EngineSettings(keep_alive_s=0.2, dead_after_s=1.5)) as (a, _b, up, _, relay):
        a.outcome(a.send(up, b"so that the last datagram has a short header"))
        sent = relay.to_server[:9]
        datagram = {
            "what was sent": sent,
            "what was sent, by a router": sent,
            "another identifier": sent[:8] + bytes([sent[8] ^ 1]),
            "too little": sent[:8],
        }
        relay.fate = silent
        assert relay.client is not None
        refused = port_unreachable(relay.client, relay.address, datagram[quoted])
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sender:
            sender.bind(("127.0.0.2" if "router" in quoted else relay.address[0], 0))

            def found_dead() -> ConnectionDown | None:
                sender.sendto(refused, ("127.0.0.1", 0))
                return a.find(ConnectionDown)

            down = wait_until(found_dead, what=lambda: "it still counts as alive", pause_s=0.05)
        assert down.gone == (quoted == "what was sent")
        assert ("nothing heard" in str(down.error)) != down.gone


def port_unreachable(sender: tuple[str, int], to: tuple[str, int], datagram: bytes) -> bytes:
    """What a host says of a datagram that it does not take (RFC 792), with the headers of IPv4 and UDP before it."""
    udp = struct.pack("!HHHH", sender[1], to[1], 8 + len(datagram), 0) + datagram
    addresses = socket.inet_aton(sender[0]) + socket.inet_aton(to[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0) + addresses
    quoted = ip + udp + bytes(len(udp) % 2)
    total = sum(struct.unpack(f"!{len(quoted) // 2}H", quoted)) + 0x0303
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHI", 3, 3, ~total & 0xFFFF, 0) + quoted


RETRY = 0xF0  # RFC 9000 17.2.5


class BusySocket(WrappedSocket):
    """A socket that has no room, once, for a Retry."""

    was_full = False

    def sendto(self, data: bytes, address: Any) -> int:
        if not self.was_full and data[0] & 0xF0 == RETRY:
            self.was_full = True
            raise BlockingIOError
        return super().sendto(data, address)


@over(("aioquic", "aioquic"))  # the other engine's socket cannot be wrapped; see test_engine_native
def test_an_answer_that_the_socket_had_no_room_for_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(wrap=BusySocket) as (a, b, _, up_b), bound_socket("127.0.0.1") as stranger:
        monkeypatch.setattr("transport.engine.admission.UNPROVED_MAX", 0)
        first = b"\xc0\0\0\0\x01\x08" + bytes(8) + b"\x08" + bytes(8) + b"\0\x44\xb0" + bytes(1200)
        stranger.sendto(first, b.address)
        wait_until(lambda: b.sock.was_full)  # type: ignore[attr-defined]
        b.send(up_b, b"hello")
        assert isinstance(a.outcome(a.post("b", None)), Received)
        stranger.settimeout(LIMIT_S)
        assert stranger.recv(2000)[0] & 0xF0 == RETRY


def test_messages_arrive_whole_over_a_path_that_loses_doubles_cuts_and_spoils() -> None:
    rng = random.Random(4)
    payloads = [rng.randbytes(rng.choice([10, 3000, 150_000])) for _ in range(40)]
    with relayed(rough(11)) as (a, b, up_a, up_b, _relay):
        posts = [(b, b.post("a", None, tag=tag), payload) for tag, payload in enumerate(payloads)]
        posts += [(a, a.post("b", None, tag=tag), payload) for tag, payload in enumerate(payloads)]
        sends = [(a, a.send(up_a, payload, tag=tag)) for tag, payload in enumerate(payloads)]
        sends += [(b, b.send(up_b, payload, tag=tag)) for tag, payload in enumerate(payloads)]
        for node, operation, payload in posts:
            assert node.outcome(operation).payload == payload
        for node, operation in sends:
            assert isinstance(node.outcome(operation), SendDone)
        wait_until(lambda: a.engine.statistics()[up_a].lost_packets > 0)  # they are at most 100 ms old
        assert a.find(ConnectionDown) is None


@over(("aioquic", "aioquic"), ("aioquic", "native"))  # quinn decides by itself when keys are old: after 2^23 packets
def test_keys_are_changed_in_time_and_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.engine.aioquic.session.KEY_PACKETS_MAX", 2000)
    payload = random.Random(5).randbytes(4 * 2**20)  # 3000 packets: one change
    with connected() as (a, b, up, _):
        engine: Any = a.engine
        phase = next(iter(engine._core._by_number.values()))
        first = phase._cryptos[Epoch.ONE_RTT].send.secret
        post = b.post("a", bytearray(len(payload)))
        a.send(up, payload)
        assert b.outcome(post).payload == payload
        assert phase._cryptos[Epoch.ONE_RTT].send.secret != first


def test_dialling_where_nobody_answers_fails_in_time() -> None:
    with pair(settings=QUICK) as (a, b):
        b.engine.close()
        attempt = a.dial(b)
        down = a.take(ConnectionDown)
        assert down.attempt == attempt
        assert down.connection is None
        assert isinstance(down.error, ConnectionLostError)


def test_idle_connections_stay_alive() -> None:
    settings = EngineSettings(keep_alive_s=0.2, dead_after_s=1.5)

    def lives() -> bool:
        with connected(settings=settings) as (a, b, up, _):
            time.sleep(3.0)  # twice the time after which a silent peer is dead
            if a.find(ConnectionDown) is not None:
                return False
            a.send(up, b"hello")
            assert b.outcome(b.post("a", None)).payload == b"hello"
            return True

    most_of(lives, lambda alive: alive, windows=4)  # a stall of 1.5 s is a death; without keep-alives each one is


@over(("native", "native"))  # the portable engine is more patient
def test_idle_connections_stay_alive_where_a_full_buffer_delays_by_seconds_and_drops_what_comes() -> None:
    """As an upload fills a router's: who says something only after a round trip is not heard when that is lost."""
    settings = EngineSettings(keep_alive_s=0.5, dead_after_s=3.0)
    lost_s, since_s = 1.2, time.monotonic()

    def dropping(data: bytes) -> list[bytes]:
        return [data] if int((time.monotonic() - since_s) / lost_s) % 2 == 0 else []

    with relayed(straight, settings=settings) as (a, b, _up, _, relay):
        since_s = time.monotonic()
        while (now_s := time.monotonic() - since_s) < 12.0:
            relay.late_s = min(now_s, 2.0)
            relay.fate = dropping if now_s > 2.0 else straight
            time.sleep(0.05)
        for one in (a, b):
            assert one.find(ConnectionDown) is None


def test_statistics_tell_what_was_moved() -> None:
    with connected() as (a, b, up, _):
        post = b.post("a", None)
        a.outcome(a.send(up, bytes(4 * 2**20)))
        b.outcome(post)
        wait_until(  # they are at most 100 ms old
            lambda: (one := a.engine.statistics().get(up)) is not None and one.delivered_bytes > 4 * 2**20
        )
        found = a.engine.statistics()[up]
        assert found.peer == "b"
        assert found.remote == b.address
        assert found.rtt_s_min < 1  # the shortest one, which no stall lengthens: it is in seconds
        assert 0 < found.rtt_s_min <= found.rtt_s
        assert found.sent_packets >= 4 * 2**20 // 1452

        def flows() -> bool:  # the rate is that of the last tenth of a second, and nothing once that is over
            post = b.post("a", None)
            a.outcome(a.send(up, bytes(2**20)))
            b.outcome(post)
            return a.engine.statistics()[up].delivery_rate_bits_per_s > 0

        wait_until(flows)


def test_what_was_acknowledged_before_a_side_closes_is_there_after_it() -> None:
    """A side that moves closes connections in use; what their ends count as arrived is not sent again."""
    for turn in range(10):
        with connected() as (a, b, up_a, up_b):
            sends = [a.send(up_a, bytes([turn]) * 100, tag=tag) for tag in range(400)]
            tags = [tag for tag in range(400) if tag != 40 * turn]
            first = sends.pop(40 * turn)
            assert isinstance(a.outcome(first), SendDone)
            b.engine.disconnect(up_b, wire_code=WireCode.NO_ERROR, reason="moved")
            ends = [(tag, a.outcome(send)) for tag, send in zip(tags, sends, strict=True)]
            arrived = [40 * turn, *(tag for tag, end in ends if isinstance(end, SendDone))]
            b.take(ConnectionDown)
            found = [b.outcome(b.post("a", None, tag=tag)) for tag in arrived]
            assert [one.payload for one in found if isinstance(one, Received)] == [bytes([turn]) * 100] * len(arrived)


@pytest.mark.parametrize("end", ["silence", "goodbye"])
def test_what_was_acknowledged_while_the_store_was_full_is_there_after_the_connection(end: str) -> None:
    """Its sender takes it for received, and does not send it again."""
    settings = EngineSettings(keep_alive_s=0.2, dead_after_s=1.0, unexpected_bytes_max=4 * 2**20)
    with relayed(straight, settings=settings) as (a, b, up, _, relay):
        payloads = [bytes([tag]) * 100_000 for tag in range(50)]  # the store has room for 41
        sends = [a.send(up, payload, tag=tag) for tag, payload in enumerate(payloads)]
        ends = [a.outcome(send) for send in sends]
        assert all(isinstance(one, SendDone) for one in ends)
        if end == "silence":
            relay.fate = silent
        else:
            a.engine.disconnect(up, wire_code=WireCode.NO_ERROR, reason="moved")
        b.take(ConnectionDown)
        found = [b.outcome(b.post("a", None, tag=tag)) for tag in range(50)]
        assert [one.payload if isinstance(one, Received) else one for one in found] == payloads
        assert b.held("a") == 0
