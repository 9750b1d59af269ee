"""What members of a volatile group tell each other, as bytes: on their connections, and in notes of the register.

Each message is a CBOR map with its kind under 0. `Prepared` is not among them: contributors exchange that in a
collective of the step's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hive_qos.errors import PeerError
from transport.volatile.protocol.commit import Contributors, Frozen, Wish
from transport.volatile.protocol.view import Member
from transport.wire import cbor
from transport.wire.error_codes import WireError


@dataclass(frozen=True)
class Look:
    """The register holds a new view, or shall."""


@dataclass(frozen=True)
class Connect:
    """The register says under `mesh` who is to connect to whom."""

    mesh: int


@dataclass(frozen=True)
class Connected:
    """The sender has done so."""

    mesh: int


@dataclass(frozen=True)
class Arrived:
    """To the first worker: the sender has its part of `step` ready, which needs `quorum` contributors at least.

    Args:
        quorum: 0 where all parts are waited for: only who makes up for a step before has to hear of that.
        part_bytes: how long the part is.
        made_up: the part was made for the step before, for which it came too late.
    """

    epoch: int
    step: int
    quorum: int
    part_bytes: int
    made_up: bool


@dataclass(frozen=True)
class Unfit:
    """To one that makes up for the step before: `step` has other parts than that one, and its part is no part of it."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Ready:
    """The sender holds everything up to `step`; `digest` is of all results.

    To the first worker from who learns, and to who asks.
    """

    step: int
    digest: bytes


@dataclass(frozen=True)
class AskReady:
    """Answer with `Ready`: the sender is about to leave, and stays for whom it has to."""


@dataclass(frozen=True)
class Pause:
    """To the first worker: the sender, who learns, does not catch up unless the others wait for it; and why."""

    reason: str


@dataclass(frozen=True)
class Ask:
    """To one who may hold it: send me a piece, or without `index` the manifest, as the message with this tag.

    Args:
        step: whose result; -1 asks for a state, of whichever step there is.
    """

    step: int
    index: int | None
    tag: int


Mail = Look | Connect | Connected | Arrived | Ready | Pause | Ask | Contributors | Frozen | AskReady | Unfit

REASON_CHARS_MAX = 200


def encode(message: Mail) -> bytes:
    """One message as bytes."""
    match message:
        case Look():
            fields: list[object] = [0]
        case Connect(mesh):
            fields = [1, mesh]
        case Connected(mesh):
            fields = [2, mesh]
        case Arrived(epoch, step, quorum, part_bytes, made_up):
            fields = [3, epoch, step, quorum, part_bytes, made_up]
        case Ready(step, digest):
            fields = [4, step, digest]
        case Pause(reason):
            fields = [5, reason[:REASON_CHARS_MAX]]
        case Ask(step, index, tag):
            fields = [6, step, index, tag]
        case Contributors(epoch, step, members, turn):
            fields = [7, epoch, step, _pairs(members), turn]
        case Frozen(epoch, committed, digest, prepared, members, lost, wish, between_steps):
            fields = [8, epoch, committed, digest, prepared, _pairs(members), _pairs(lost)]
            fields += [_pairs(wish.joining), _pairs(wish.ready), wish.asked, wish.mesh, wish.pause, between_steps]
        case AskReady():
            fields = [9]
        case Unfit(epoch, step):
            fields = [10, epoch, step]
    return cbor.encode_map(dict(enumerate(fields)))


def decode(data: bytes, *, sender: str) -> Mail:
    """The message that those bytes are.

    Raises:
        PeerError: they are none.
    """
    try:
        held = cbor.decode_map(data)
        return _decode([held[place] for place in range(len(held))])
    except (KeyError, IndexError, TypeError, ValueError, WireError) as error:
        raise PeerError(sender, f"its message cannot be read: {error}") from error


def _decode(held: list[Any]) -> Mail:
    match held:
        case [0]:
            return Look()
        case [1, int(mesh)]:
            return Connect(mesh)
        case [2, int(mesh)]:
            return Connected(mesh)
        case [3, int(epoch), int(step), int(quorum), int(part_bytes), bool(made_up)]:
            return Arrived(epoch, step, quorum, part_bytes, made_up)
        case [4, int(step), bytes(digest)]:
            return Ready(step, digest)
        case [5, str(reason)]:
            return Pause(reason)
        case [6, int(step), None | int() as index, int(tag)]:
            return Ask(step, index, tag)
        case [7, int(epoch), int(step), list(members), bool(turn)]:
            return Contributors(epoch, step, tuple(_members(members)), turn)
        case [8, int(epoch), int(committed), bytes(digest), None | bytes() as prepared, list(members), list(lost),
              list(joining), list(ready), int(asked), int(mesh), bool(pause),
              bool(between_steps)]:  # fmt: skip
            wish = Wish(frozenset(_members(joining)), frozenset(_members(ready)), asked, mesh, pause)
            contributors = tuple(_members(members))
            gone = frozenset(_members(lost))
            return Frozen(epoch, committed, digest, prepared, contributors, gone, wish, between_steps)
        case [9]:
            return AskReady()
        case [10, int(epoch), int(step)]:
            return Unfit(epoch, step)
    raise ValueError("an unknown kind, or its fields are not what they should be")


def _pairs(members: Iterable[Member]) -> list[list[object]]:
    return [[one.name, one.incarnation] for one in sorted(members)]


def _members(pairs: list[Any]) -> Iterable[Member]:
    for name, incarnation in pairs:
        if not isinstance(name, str) or not isinstance(incarnation, int):
            raise TypeError("no member")
        yield Member(name, incarnation)
