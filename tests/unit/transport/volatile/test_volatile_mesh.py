"""Mail between members: what one of them sends amiss, or cannot finish, makes nobody deaf to the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import PeerError
from transport import Settings
from transport.volatile.links.links import AGAIN_S, Links
from transport.volatile.links.mesh import _MAIL, Mesh, connect_s
from transport.volatile.protocol import messages
from transport.volatile.protocol.messages import Ask
from transport.volatile.protocol.view import DIGEST_BYTES, Member
from transport.volatile.register.register import MemoryStore, Register
from transport.volatile.transfer.manifest import STATE
from transport.volatile.transfer.shelf import Shelf

MEMBERS = tuple(Member(name, 1) for name in "abc")


def hears(group: Any, heard: list[tuple[str, bytes]]) -> Mesh:
    """A mesh at its first member, which notes what it is told."""

    def note(_mesh: Mesh, sender: Member, data: bytes) -> None:
        heard.append((sender.name, data))

    return Mesh(1, MEMBERS, group, on_mail=note, on_loss=lambda: None)


def test_who_was_sent_what_is_too_large_for_a_message_hears_the_others_still(make_world: Callable[..., Any]) -> None:
    world, heard = make_world(3, receive_bytes_max=100_000), list[tuple[str, bytes]]()
    hears(world.groups[0], heard)
    with pytest.raises(PeerError, match="takes at most 100000"):
        world.groups[1].send(np.zeros(2**21, np.uint8), 0, _MAIL).wait(30)
    sender = Mesh(1, MEMBERS, world.groups[2], on_mail=lambda *_: None, on_loss=lambda: None)
    sender.mail(MEMBERS[0], b"hello")
    wait_until(lambda: heard == [("c", b"hello")])


def test_who_was_to_hear_one_that_died_hears_the_others_still(make_world: Callable[..., Any]) -> None:
    """Its message has begun to come when its sender dies."""
    world, heard = make_world(3, reconnect_s=0.1), list[tuple[str, bytes]]()
    hears(world.groups[0], heard)
    world.network.hold("rank-0", "rank-1")
    world.groups[1].send(np.zeros(2**21, np.uint8), 0, _MAIL)
    wait_until(lambda: world.network.waiting)  # what asks for the rest of it
    world.network.kill("rank-1")
    wait_until(lambda: world.groups[0].lost_ranks())
    sender = Mesh(1, MEMBERS, world.groups[2], on_mail=lambda *_: None, on_loss=lambda: None)
    sender.mail(MEMBERS[0], b"hello")
    wait_until(lambda: heard == [("c", b"hello")])


def test_a_question_is_answered_over_the_connections_that_it_came_over(make_world: Callable[..., Any]) -> None:
    """Who asks may work on the next mesh already, where whoever answers does not."""
    worlds = {number: make_world(3) for number in (1, 2)}

    class TwoMeshes(Links):
        """Of the first member, over worlds in memory."""

        def _connected_to(self, number: int, _members: frozenset[Member]) -> Mesh:
            group = worlds[number].groups[0]
            return Mesh(number, MEMBERS, group, on_mail=self._mailed, on_loss=lambda: None)

    register = Register(MemoryStore(), job="job")
    shelf = Shelf()
    shelf.put_state(5, bytes(DIGEST_BYTES), b"state")
    links = TwoMeshes(
        register, MEMBERS[0], settings=Settings(), shelf=shelf, heard=lambda *_: None, on_loss=lambda: None
    )
    links.connect(1, frozenset(MEMBERS))
    links.begin(2, frozenset(MEMBERS))
    wait_until(lambda: links.newest.number == 2)
    asker = Mesh(2, MEMBERS, worlds[2].groups[1], on_mail=lambda *_: None, on_loss=lambda: None)
    answer = asker.replied(MEMBERS[0], 7, timeout_s=10.0)
    asker.mail(MEMBERS[0], messages.encode(Ask(STATE, 0, 7)))
    found = answer.wait()
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == b"state"


def test_who_asks_again_and_again_takes_no_more_tags_than_it_has_questions_under_way(
    make_world: Callable[..., Any],
) -> None:
    """Both ends keep a count of each, and who only follows asks for days."""
    world = make_world(3)

    class OneMesh(Links):
        """Of a member, over a world in memory."""

        def _connected_to(self, number: int, _members: frozenset[Member]) -> Mesh:
            group = world.groups[MEMBERS.index(self._me)]
            return Mesh(number, MEMBERS, group, on_mail=self._mailed, on_loss=lambda: None)

    register = Register(MemoryStore(), job="job")
    both = [
        OneMesh(register, me, settings=Settings(), shelf=Shelf(), heard=lambda *_: None, on_loss=lambda: None)
        for me in MEMBERS[:2]
    ]
    for one in both:
        one.connect(1, frozenset(MEMBERS))
    (holder,) = both[0].holders(MEMBERS[1:2])
    for _ in range(20):
        holder.question(STATE, None).wait()
        wait_until(lambda: both[0]._free_tags)
    assert both[0]._free_tags == [0]


def test_connections_that_failed_before_their_time_are_made_anew_soon() -> None:
    class InVain(Links):
        def _connected_to(self, _number: int, _members: frozenset[Member]) -> Mesh:
            raise PeerError("rank 1", "it gave up connecting")

    register = Register(MemoryStore(), job="job")
    links = InVain(register, MEMBERS[0], settings=Settings(), shelf=Shelf(), heard=print, on_loss=print)
    links.begin(2, frozenset(MEMBERS))
    wait_until(lambda: links.plan is not None and links.plan.give_up_s <= time.monotonic() + AGAIN_S)
    assert connect_s(len(MEMBERS)) > AGAIN_S
