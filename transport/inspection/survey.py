"""One rank asks the others what each says of itself, over the group's own connections, in the control class.

    {"op": "describe", "number": 3}
    {"op": "described", "number": 3, "document": {...}}

Runs in the transport's thread, but for `collect`. What nobody asked for is ignored.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Document = Mapping[str, object]


@dataclass
class _Asked:
    """A question under way: who has yet to answer, and what came."""

    waiting: set[int]
    answers: dict[int, Document] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)


class Survey:
    """See the module.

    Args:
        send: a control message to a rank.
        call: run something in the transport's thread.
        describe: what this rank says of itself.
    """

    def __init__(
        self,
        *,
        send: Callable[[int, Mapping[str, object]], None],
        call: Callable[[Callable[[], None]], None],
        describe: Callable[[], Document],
    ) -> None:
        self._send = send
        self._call = call
        self._describe = describe
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count()

    def own(self, *, limit_s: float) -> Document | None:
        """What this rank says of itself; None where the transport's thread does not come to it in time."""
        found: list[Document] = []
        ended = threading.Event()

        def look() -> None:
            try:
                found.append(self._describe())
            finally:
                ended.set()

        self._call(look)
        ended.wait(limit_s)
        return found[0] if found else None

    def collect(self, ranks: Iterable[int], *, limit_s: float) -> dict[int, Document]:
        """Ask these ranks; what those say that answer in time. From any thread but the transport's."""
        asked, number = _Asked(set(ranks)), next(self._numbers)
        if not asked.waiting:
            return {}

        def begin() -> None:
            self._asked[number] = asked
            for rank in tuple(asked.waiting):
                self._send(rank, {"op": "describe", "number": number})

        def end() -> None:
            self._asked.pop(number, None)

        self._call(begin)
        asked.ended.wait(limit_s)
        self._call(end)
        return dict(asked.answers)

    def describe_to(self, rank: int, number: int) -> None:
        """Another rank asks."""
        self._send(rank, {"op": "described", "number": number, "document": self._describe()})

    def described(self, rank: int, number: int, document: Document) -> None:
        """Another rank's answer."""
        asked = self._asked.get(number)
        if asked is None or rank not in asked.waiting:
            return
        asked.waiting.discard(rank)
        asked.answers[rank] = document
        if not asked.waiting:
            asked.ended.set()
