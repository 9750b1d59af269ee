"""One rank asks the others what each says of itself, over the group's own connections, in the control class.

    {"op": "describe", "number": 3}
    {"op": "described", "number": 3, "part": 0, "parts": 2, "text": "eJyr..."}

A document is JSON, compressed (zlib) and cut, for a control message is small. Runs in the transport's thread, but for
`collect`. What nobody asked for, or what is too long, is ignored.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PART_CHARACTERS = 1400
"""With the message around it less than a control message has (2048 bytes)."""
PARTS_MAX = 32
DOCUMENT_BYTES_MAX = 2**20
"""Unpacked: twelve times what a member with all its links has."""
_log = logging.getLogger("transport.inspection")
Document = Mapping[str, object]


@dataclass
class _Asked:
    """A question under way: who has yet to answer, and what came."""

    waiting: set[int]
    parts: dict[int, list[str]] = field(default_factory=dict)
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
        texts = packed(self._describe())
        if len(texts) > PARTS_MAX:
            _log.warning("this rank has too much to say of itself: %d parts", len(texts))
            return
        for part, text in enumerate(texts):
            told = {"op": "described", "number": number, "part": part, "parts": len(texts), "text": text}
            self._send(rank, told)

    def described(self, rank: int, number: int, *, part: int, parts: int, text: str) -> None:
        """A part of another rank's answer. Parts may come in any order."""
        asked = self._asked.get(number)
        if asked is None or rank not in asked.waiting or not 0 <= part < parts <= PARTS_MAX:
            return
        texts = asked.parts.setdefault(rank, [""] * parts)
        if len(texts) != parts or len(text) > PART_CHARACTERS:
            return
        texts[part] = text
        if not all(texts):
            return
        del asked.parts[rank]
        asked.waiting.discard(rank)
        try:
            asked.answers[rank] = unpacked(texts)
        except ValueError as error:
            _log.warning("rank %d says something of itself that cannot be read: %s", rank, error)
        if not asked.waiting:
            asked.ended.set()


def packed(document: Document) -> list[str]:
    """A document as texts that each fit into a control message."""
    text = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    return [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]


def unpacked(texts: Sequence[str]) -> Document:
    """The document of such texts.

    Raises:
        ValueError: they are of none, or it is too long.
    """
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode("".join(texts), validate=True), DOCUMENT_BYTES_MAX)
        if reader.unconsumed_tail:
            raise ValueError(f"longer than {DOCUMENT_BYTES_MAX} bytes")
        found = json.loads(data)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found
