"""What readers get: each page of a snapshot as bytes, made once however many ask, and encoded in pieces.

Readers' threads share the interpreter's lock with the loop. Between two steps of Python it changes hands within a
fraction of a millisecond (`broker.process.priority`), but a call of C keeps it to its end: 640 flows in one piece
are 2.3 ms. So no call encodes more than `AT_ONCE` entries of a list, a tenth of a millisecond.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from broker.api.document import document
from broker.api.flows import flow_list
from broker.api.metrics import metrics
from broker.api.openapi import description
from broker.api.snapshot import Snapshot

AT_ONCE = 24
"""Flows, of 4 µs each; an interface with its classes takes as long as eight."""
JSON, PROMETHEUS = "application/json", "text/plain; version=0.0.4; charset=utf-8"

_PAGES: Mapping[str, tuple[str, Callable[[Snapshot], Any]]] = {
    "/v1/status": (JSON, document),
    "/v1/policy": (JSON, lambda snapshot: msgspec.to_builtins(snapshot.policy)),
    "/v1/flows": (JSON, lambda snapshot: {"schema": 1, "flows": flow_list(snapshot)}),
    "/metrics": (PROMETHEUS, metrics),
}
"""The pages that show a snapshot: of what kind they are, and what they are made from."""
DESCRIPTION = "/v1/openapi.json"
PATHS = ("/v1/status", "/v1/policy", "/v1/flows", DESCRIPTION, "/metrics")


class Pages:
    """For any thread."""

    def __init__(self) -> None:
        self._locks = {path: threading.Lock() for path in PATHS}
        self._made: dict[str, tuple[Snapshot | None, bytes]] = {}

    def description(self) -> tuple[str, bytes]:
        """The description of the socket, with its kind. It needs no snapshot."""
        return JSON, self._page(DESCRIPTION, None, lambda: encoded(description()))

    def of(self, path: str, snapshot: Snapshot) -> tuple[str, bytes]:
        """A page that shows a snapshot, with its kind.

        Raises:
            KeyError: there is no such page.
        """
        kind, show = _PAGES[path]

        def make() -> bytes:
            shown = show(snapshot)
            return shown if isinstance(shown, bytes) else encoded(shown)

        return kind, self._page(path, snapshot, make)

    def _page(self, path: str, snapshot: Snapshot | None, make: Callable[[], bytes]) -> bytes:
        with self._locks[path]:  # who comes while it is made takes it
            made = self._made.get(path)
            if made is None or made[0] is not snapshot:
                made = self._made[path] = snapshot, make()
            return made[1]


def encoded(value: Any) -> bytes:
    """The same bytes as `json.dumps`."""
    return b"".join(piece.encode() for piece in pieces(value))


def pieces(value: Any) -> Iterator[str]:
    """A document as JSON, a few entries of its lists at a time."""
    if isinstance(value, dict):
        yield "{"
        for number, (name, inner) in enumerate(value.items()):
            # in a document, so that names which are no text become what json makes of them
            yield (", " if number else "") + json.dumps({name: 0})[1:-2]
            yield from pieces(inner)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for start in range(0, len(value), AT_ONCE):
            yield f"{', ' if start else ''}{json.dumps(value[start : start + AT_ONCE])[1:-1]}"
        yield "]"
    else:
        yield json.dumps(value)
