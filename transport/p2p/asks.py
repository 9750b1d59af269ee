"""What this rank has told the senders of large messages: that a body may come, or that it is not wanted.

A receive asks when it posts its buffer, which may be before the head has come, and so before the message was sent. If
it ends before that, it takes its asking back, or a later body would leave for nobody, and keep all behind it waiting.
The taking back may come after the next receive's asking. So that one asks again when the head comes.
"""

from __future__ import annotations

from transport.engine.base import Buffer, Priority
from transport.mesh.endpoint import Endpoint
from transport.mesh.outbox import forget
from transport.p2p.operation import ASK, BODY, P2POp
from transport.wire.header import MatchKey

REFUSAL_BYTES_MAX = 512
WITHDRAWN = b"\0"
"""In place of the words of a refusal: it takes the asking back."""


class Asks:
    """In the transport's thread. Messages are known by their sender, and the key of their body."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._asked: set[tuple[int, MatchKey]] = set()
        self._withdrawn: set[tuple[int, MatchKey]] = set()

    def ask(self, op: P2POp, rank: int, number: int) -> None:
        """Tell the sender that its body may come, once for each number."""
        part = (rank, op.key(rank, number, BODY))
        if part not in self._asked:
            self._asked.add(part)
            self._tell(op, rank, number, b"")

    def refuse(self, op: P2POp, rank: int, number: int, why: str) -> None:
        """Tell it why the body must not come."""
        self._tell(op, rank, number, why.encode()[:REFUSAL_BYTES_MAX])

    def take_back(self, op: P2POp, rank: int, number: int) -> None:
        """A receive has ended before the head came."""
        part = (rank, op.key(rank, number, BODY))
        if part in self._asked:
            self._asked.discard(part)
            self._withdrawn.add(part)
            self._tell(op, rank, number, WITHDRAWN)

    def head_came(self, op: P2POp, rank: int, number: int, *, again: bool) -> None:
        """A head has come; ask again for its body if that is wanted, and an asking was taken back."""
        part = (rank, op.key(rank, number, BODY))
        if part in self._withdrawn:
            self.ended(part)
            if again:
                self.ask(op, rank, number)

    def ended(self, part: tuple[int, MatchKey]) -> None:
        """The body has come, or never will."""
        self._asked.discard(part)
        self._withdrawn.discard(part)

    def forget(self, group: str) -> None:
        """Drop what is known of a group, by its name on the wire."""
        for parts in (self._asked, self._withdrawn):
            parts -= {part for part in parts if part[1].group == group}

    def _tell(self, op: P2POp, rank: int, number: int, words: bytes) -> None:
        if self._endpoint.closing or self._endpoint.peers.error(rank) is not None:
            return
        text = memoryview(words)
        header = op.header(self._endpoint.rank, number, ASK, text)
        self._endpoint.send(
            rank, header, text if text.nbytes else None, priority=Priority.CONTROL, order=(0, 0), on_end=forget
        )


def refusal_in(payload: Buffer) -> str:
    """The words of a refusal."""
    return bytes(payload[:REFUSAL_BYTES_MAX]).decode(errors="replace")
