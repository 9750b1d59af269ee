"""Keys change in the middle of a transfer, by either side, and nobody notices; but only as often as can be followed."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

from aioquic.tls import Epoch
from engine_support import ConnectionDown, Node, connected, engines, over, pytest_generate_tests
from patience import wait_until

from transport.engine.base import Received, SendDone

__all__ = ["engines", "pytest_generate_tests"]

CHUNK_BYTES, CHUNKS = 2_000_000, 6


def update_keys(node: Node, connection: int) -> None:
    """Have an aioquic connection change its keys; a native one does by itself."""
    core: Any = node.engine._core  # type: ignore[attr-defined]
    if node.engine.name == "aioquic":
        core.command(core._by_number[connection].request_key_update)


def secret(node: Node, connection: int) -> bytes:
    """What an aioquic connection's receiving keys are made of."""
    core: Any = node.engine._core  # type: ignore[attr-defined]
    return bytes(core._by_number[connection]._cryptos[Epoch.ONE_RTT].recv.secret)


def test_messages_of_both_directions_arrive_whole_while_both_sides_change_keys() -> None:
    rng = random.Random(6)
    payloads = [rng.randbytes(CHUNK_BYTES) for _ in range(CHUNKS)]
    with connected() as (a, b, up_a, up_b):
        posts = [(b, b.post("a", None, tag=tag), payload) for tag, payload in enumerate(payloads)]
        posts += [(a, a.post("b", None, tag=tag), payload) for tag, payload in enumerate(payloads)]
        sends = []
        for tag, payload in enumerate(payloads):
            sends += [(a, a.send(up_a, payload, tag=tag)), (b, b.send(up_b, payload, tag=tag))]
        for node, post, payload in posts:  # as each arrives, others are under way
            outcome = node.outcome(post)
            assert isinstance(outcome, Received)
            assert outcome.payload == payload
            update_keys(*((a, up_a) if node is a else (b, up_b)))
        for node, send in sends:
            assert isinstance(node.outcome(send), SendDone)
        assert not [event for node in (a, b) for event in node.events if isinstance(event, ConnectionDown)]


@over(("aioquic", "aioquic"))  # quinn asks itself, and its keys cannot be looked at
def test_a_change_that_is_asked_for_happens() -> None:
    with connected() as (a, b, up_a, up_b):
        tags = itertools.count()

        def another(seen: bytes) -> bool:
            update_keys(a, up_a)  # no heed is taken until the last change is over
            tag = next(tags)
            post = b.post("a", None, tag=tag)
            send = a.send(up_a, bytes(10_000), tag=tag)
            b.outcome(post)
            assert isinstance(a.outcome(send), SendDone)
            return secret(b, up_b) != seen

        for _ in range(3):
            seen = secret(b, up_b)
            wait_until(functools.partial(another, seen))


@over(("native", "aioquic"), ("aioquic", "native"))  # the peer's keys tell; quinn's cannot be looked at
def test_a_native_connection_changes_its_keys_early_by_itself_whichever_side_it_is() -> None:
    """After 10 to 1000 packets first, then every 2^23 or so: a peer that cannot follow is found out at once."""
    with connected() as (a, b, up_a, up_b):
        native, up, peer, up_peer = (a, up_a, b, up_b) if a.engine.name == "native" else (b, up_b, a, up_a)
        before = secret(peer, up_peer)
        post = peer.post(native.name, None)
        native.send(up, bytes(3_000_000))
        assert isinstance(peer.outcome(post), Received)
        assert secret(peer, up_peer) != before


@over(("aioquic", "native"))  # quinn does not let itself be made to do that, and aioquic lets a peer do it
def test_who_changes_keys_with_every_packet_is_closed() -> None:
    with connected() as (a, b, up_a, _):
        pair: Any = a.engine._core._by_number[up_a]._cryptos[Epoch.ONE_RTT]  # type: ignore[attr-defined]
        seal = pair.encrypt_packet

        def with_new_keys(*args: Any) -> bytes:
            sealed: bytes = seal(*args)
            pair.update_key()
            return sealed

        pair.encrypt_packet = with_new_keys
        a.send(up_a, bytes(1_000_000))
        down = b.take(ConnectionDown)
        assert "key" in str(down.error)
