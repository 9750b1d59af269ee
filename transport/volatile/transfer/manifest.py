"""What a state or a result is made of: pieces, a digest each. And what a holder says of those that it has.

The digest of a result, which the members compare before they commit it, is that of its pieces' digests: so a result
that was fetched is known to be the one that was committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hive_qos.errors import PeerError
from transport.volatile.protocol.view import DIGEST_BYTES, Member
from transport.wire import cbor
from transport.wire.error_codes import WireError

PIECE_BYTES = 2**20
"""84 ms at 100 Mbit/s: small enough to share out, and 16 bytes of digest are nothing beside it."""
STATE = -1
"""Stands where a result has its step."""


@dataclass(frozen=True)
class Manifest:
    """What is on a shelf, but not its bytes.

    Args:
        step: after which the state is, or whose result it is.
        digest: of all results up to that step.
        members: whose parts the result has; none for a state.
        lengths: of its tensors, in bytes; of a state one.
        pieces: a digest each, tensor by tensor.
        head: the last step that its holder has.
    """

    step: int
    digest: bytes
    members: tuple[Member, ...]
    lengths: tuple[int, ...]
    pieces: tuple[bytes, ...]
    head: int = 0

    @property
    def result(self) -> bytes:
        """The digest of the whole."""
        return digest_of(self.pieces)

    def cuts(self) -> list[tuple[int, int]]:
        """Where each piece begins and ends in all of the tensors' bytes."""
        return list(_cuts(self.lengths))

    def encode(self) -> bytes:
        """As bytes."""
        pairs = [[one.name, one.incarnation] for one in self.members]
        joined = b"".join(self.pieces)
        return cbor.encode_map({0: self.step, 1: self.digest, 2: pairs, 3: list(self.lengths), 4: joined, 5: self.head})

    @classmethod
    def decode(cls, data: bytes, *, sender: str) -> Manifest:
        """Read one.

        Raises:
            PeerError: those bytes are none.
        """
        try:
            held = cbor.decode_map(data)
            members = tuple(Member(str(name), int(incarnation)) for name, incarnation in held[2])
            lengths = tuple(int(one) for one in held[3])
            joined = bytes(held[4])
            pieces = tuple(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))
            if any(one < 0 for one in lengths) or len(pieces) != _count(lengths):
                raise ValueError("its pieces are not those of its lengths")
            return cls(int(held[0]), bytes(held[1]), members, lengths, pieces, int(held[5]))
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise PeerError(sender, f"what it says of its state cannot be read: {error}") from error


@dataclass(frozen=True)
class Absent:
    """A holder does not have it. `gone`: it had it, or will never have; else perhaps in a moment."""

    gone: bool


def piece_digests(tensors: Sequence[memoryview]) -> tuple[bytes, ...]:
    """A digest for each piece of each tensor."""
    found: list[bytes] = []
    for one in tensors:
        for begin, end in _cuts([one.nbytes]):
            found.append(hashlib.blake2b(one[begin:end], digest_size=DIGEST_BYTES).digest())
    return tuple(found)


def digest_of(pieces: Sequence[bytes]) -> bytes:
    """The digest of what has these pieces."""
    return hashlib.blake2b(b"".join(pieces), digest_size=DIGEST_BYTES).digest()


def _cuts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    for length in lengths:
        for at in range(0, length, PIECE_BYTES):
            yield begin + at, begin + min(at + PIECE_BYTES, length)
        begin += length


def _count(lengths: Sequence[int]) -> int:
    return sum(-(-one // PIECE_BYTES) for one in lengths)


def read_answer(data: bytes, *, sender: str) -> Manifest | Absent:
    """What `Shelf.answer` gave for a manifest.

    Raises:
        PeerError: those bytes are none.
    """
    try:
        held = cbor.decode_map(data)
        if len(held) == 2:
            return Absent(held[1] is True)
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise PeerError(sender, f"its answer cannot be read: {error}") from error
    return Manifest.decode(data, sender=sender)
