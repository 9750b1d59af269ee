"""What ranks tell each other of an operation that one of them has given up, and what the others raise for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError
from hive_qos.text import printable
from transport.mesh.peers import Peer

REASON_CHARS_MAX = 320
"""So that a control message fits: a character may take four bytes."""

Key = tuple[str, int]
"""A group and the number of an operation in it."""


@dataclass(frozen=True)
class RemoteAbort:
    """What another member says of an operation that it has given up.

    Args:
        rank: who says it, as a rank of the endpoint.
        lost: the rank of the endpoint whose loss it was, if it was one.
        answers: that rank still answers us: only the two of them know which of them is to blame.
        disagrees: the members do not call the same thing; `reason` says what each called.
    """

    rank: int
    reason: str
    lost: int | None = None
    answers: bool = False
    disagrees: bool = False


def error_of(
    abort: RemoteAbort, *, ranks: tuple[int, ...], peers: Mapping[int, Peer], waits_for: str = ""
) -> HiveError:
    """What this rank raises when another one has given up. The error names ranks of the group.

    Args:
        ranks: the group's members as ranks of the endpoint.
        peers: of the endpoint, by rank.
        waits_for: whom this rank waits for, in words: the other one may have given up waiting for this rank.
    """
    index = ranks.index(abort.rank) if abort.rank in ranks else abort.rank
    lost = None if abort.lost not in ranks else peers.get(abort.lost)
    if lost is not None and abort.answers:
        said = f"it says that it lost rank {ranks.index(lost.rank)}, which still answers this rank: {abort.reason}"
        return CancelledError(f"rank {index} gave up: {said}")
    if lost is not None:
        return ConnectionLostError(lost.name, abort.reason, rank=ranks.index(lost.rank))
    if abort.disagrees:
        return PeerError(f"rank {index}", abort.reason)
    waiting = f"; this rank waited for {waits_for}" if waits_for else ""
    return CancelledError(f"rank {index} gave up: {abort.reason}{waiting}")


def sent_reason(reason: str) -> str:
    """As a control message has it: none of any letters or length is too long for who is to hear it."""
    return printable(reason, length_max=REASON_CHARS_MAX)


def abort_message(key: Key, ranks: tuple[int, ...], error: HiveError, *, disagrees: bool) -> dict[str, object]:
    """The control message that tells the others.

    Args:
        ranks: the group's members as ranks of the endpoint: errors name ranks of the group, messages those.
        disagrees: the members do not call the same thing.
    """
    lost = ranks[error.rank] if isinstance(error, ConnectionLostError) and error.rank is not None else None
    plain = isinstance(error, ConnectionLostError) or (disagrees and isinstance(error, PeerError))
    reason = error.reason if plain else str(error)  # type: ignore[attr-defined]
    return {
        "op": "abort",
        "group": key[0],
        "step": key[1],
        "reason": sent_reason(reason),
        "lost": lost,
        "disagrees": disagrees,
    }
