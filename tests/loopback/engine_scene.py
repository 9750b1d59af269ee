"""A victim, an honest friend that is connected to it, and mallory, who is bare aioquic and trusted as well."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from aioquic.quic.events import ConnectionTerminated
from engine_raw_peer import RawPeer
from engine_support import ConnectionUp, Node

from transport.engine.base import EngineSettings, SendDone
from transport.identity import ephemeral_identity
from transport.identity.credentials import Trust

NATIVE = ("native", "native")
SETTINGS = EngineSettings(handshake_timeout_s=60.0, dead_after_s=60.0, unexpected_bytes_max=2**22)
"""Patient: mallory acknowledges nothing while its test does something else."""


@dataclass
class Scene:
    victim: Node
    friend: Node
    up: int
    """The victim's connection to its friend."""
    back: int
    """The friend's to the victim."""
    mallory: RawPeer
    tag: int = 10_000

    def friend_is_heard(self) -> None:
        """A message goes each way, as if mallory were not there."""
        self.tag += 1
        for sender, receiver, connection in (
            (self.friend, self.victim, self.back),
            (self.victim, self.friend, self.up),
        ):
            post = receiver.post(sender.name, None, tag=self.tag)
            send = sender.send(connection, bytes(100_000), tag=self.tag)
            assert len(receiver.outcome(post).payload) == 100_000
            assert isinstance(sender.outcome(send), SendDone)

    def greet(self) -> int:
        self.mallory.greet()
        return self.mallory.until(lambda: self.victim.find(ConnectionUp, lambda up: up.peer == "mallory")).connection


@pytest.fixture
def scene(engines: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Scene]:
    settings = getattr(request, "param", SETTINGS)
    identity = ephemeral_identity("mallory")
    victim, friend = Node("victim", settings=settings), Node("friend", settings=SETTINGS)
    mallory = None
    try:
        trust = Trust(
            pins={identity.pin: "mallory", victim.identity.pin: "victim", friend.identity.pin: "friend"},
        )
        for node in (victim, friend):
            node.serve(trust)
        friend.dial(victim)
        back = friend.take(ConnectionUp).connection
        up = victim.take(ConnectionUp).connection
        mallory = RawPeer(victim.address, identity.credentials)
        yield Scene(victim, friend, up, back, mallory)
    finally:
        if mallory is not None:
            mallory.sock.close()
        victim.engine.close()
        friend.engine.close()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def closed_with(scene: Scene) -> int:
    return int(scene.mallory.run(ConnectionTerminated).error_code)
