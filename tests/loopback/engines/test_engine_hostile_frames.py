"""Frames that no stack would send, sealed with good keys: a trusted peer that is broken, or was taken over.

Nothing of a packet reaches the reader of frames before its seal is found good: spoiled datagrams do not test that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from aioquic.tls import Epoch
from engine_raw_peer import HELLO, RawPeer, message
from engine_support import EACH, ConnectionDown, ConnectionUp, Node, engines, over, pytest_generate_tests
from patience import wait_until

from hive_qos.errors import ConnectionLostError, PeerError
from transport.engine.base import EngineSettings, SendDone
from transport.identity import ephemeral_identity
from transport.identity.credentials import Trust
from transport.wire.varint import VARINT_MAX, encode_varint

__all__ = ["engines", "pytest_generate_tests"]

PEERS, PACKETS_MAX = 40, 12
SEED = 1
PADDING = bytes(16)
"""A sealed packet has to have something to sample (RFC 9001 5.4.2)."""
EDGES = (0, 1, 2, 3, 63, 64, 1200, 16383, 16384, 2**30, 2**32, 2**60, VARINT_MAX)
FRAMES: dict[int, str] = {
    0x00: "", 0x01: "", 0x02: "nnnnnn", 0x03: "nnnnnnnnn", 0x04: "nnn", 0x05: "nn", 0x06: "nb", 0x07: "b",
    0x08: "nt", 0x09: "nt", 0x0A: "nb", 0x0B: "nb", 0x0C: "nnt", 0x0D: "nnt", 0x0E: "nnb", 0x0F: "nnb",
    0x10: "n", 0x11: "nn", 0x12: "n", 0x13: "n", 0x14: "n", 0x15: "nn", 0x16: "n", 0x17: "n",
    0x18: "nncx", 0x19: "n", 0x1A: "8", 0x1B: "8", 0x1E: "", 0x1F: "", 0x30: "t", 0x31: "b", 0xAF: "nnnn",
}  # fmt: skip
"""RFC 9000 19, datagrams (RFC 9221) and frequencies of acknowledgements, without CONNECTION_CLOSE: what their fields
are. n: an integer, b: bytes behind their length, t: bytes to the packet's end, c: an identifier behind its length,
x: a reset token, 8: eight bytes."""


def noise(rng: random.Random) -> bytes:
    """One to four frames whose fields are anything, or bytes of any kind."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randint(1, 100))
    frames = b""
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(list(FRAMES))
        frames += encode_varint(kind) + b"".join(field(rng, form) for form in FRAMES[kind])
    return frames[: rng.randint(1, len(frames))] if rng.random() < 0.1 else frames


def field(rng: random.Random, form: str) -> bytes:
    data = rng.randbytes(rng.choice([0, 1, 8, 20, 100]))
    length = len(data) if rng.random() < 0.9 else rng.choice(EDGES)
    match form:
        case "n":
            return encode_varint(rng.choice(EDGES) if rng.random() < 0.7 else rng.randrange(40))
        case "b":
            return encode_varint(length) + data
        case "c":
            return bytes([length & 0xFF]) + data
        case "x":
            return rng.randbytes(16)
        case "8":
            return rng.randbytes(8)
        case _:
            return data


def seal_and_send(peer: RawPeer, frames: bytes) -> None:
    """A packet of one round trip's keys with these frames, whatever aioquic would think of them."""
    quic: Any = peer.quic
    pair, number = quic._cryptos[Epoch.ONE_RTT], quic._packet_number
    quic._packet_number += 1
    first = 0x41 | pair.key_phase << 2
    header = bytes([first]) + quic._peer_cid.cid + (number & 0xFFFF).to_bytes(2, "big")
    peer.sock.sendto(pair.encrypt_packet(header, frames + PADDING, number), peer.address)


def ended(peer: RawPeer) -> bool:
    peer._exchange()
    return peer._taken(ConnectionTerminated) is not None


@over(*EACH)
def test_frames_of_noise_from_a_trusted_peer_end_its_connection_at_most(engines: tuple[str, str]) -> None:
    rng = random.Random(SEED)
    identity = ephemeral_identity("mallory")
    settings = EngineSettings(handshake_timeout_s=60.0, dead_after_s=60.0, unexpected_bytes_max=2**22)
    victim, friend = Node("victim", settings=settings), Node("friend", settings=settings)
    peers: list[RawPeer] = []
    try:
        nodes = (victim, friend)
        trust = Trust(pins={identity.pin: "mallory"} | {node.identity.pin: node.name for node in nodes})
        for node in nodes:
            node.serve(trust)
        friend.dial(victim)
        back, up = friend.take(ConnectionUp).connection, victim.take(ConnectionUp).connection
        refused = 0
        for _ in range(PEERS):
            peer = RawPeer(victim.address, identity.credentials)
            peers.append(peer)
            peer.run(HandshakeCompleted)
            peer.say(2, HELLO)
            connection = peer.until(lambda: victim.find(ConnectionUp)).connection
            peer.say(6, message(bytes(20_000))[:3000])  # something is under way
            peer._exchange()
            for _ in range(PACKETS_MAX):
                seal_and_send(peer, noise(rng))
                if ended(peer):
                    break
            gone = victim.find(ConnectionDown, lambda down, number=connection: down.connection == number)
            if gone is None:
                peer.quic.close(0, reason_phrase="enough")
                gone = wait_until(down_of(peer, victim, connection))
            refused += gone.error is not None
            assert gone.error is None or isinstance(gone.error, (PeerError, ConnectionLostError))
            assert "failed" not in str(gone.error), f"seed {SEED}: a panic, or an exception: {gone}"
        assert refused > PEERS / 2, "noise is no protocol"
        for sender, receiver, over_it in ((friend, victim, back), (victim, friend, up)):
            post = receiver.post(sender.name, None)
            send = sender.send(over_it, bytes(100_000))
            assert len(receiver.outcome(post).payload) == 100_000
            assert isinstance(sender.outcome(send), SendDone)
    finally:
        for peer in peers:
            peer.sock.close()
        for node in (victim, friend):
            node.engine.close()


def down_of(peer: RawPeer, victim: Node, connection: int) -> Callable[[], ConnectionDown | None]:
    def look() -> ConnectionDown | None:
        peer._exchange()
        return victim.find(ConnectionDown, lambda down: down.connection == connection)

    return look
