"""What readers get: each page of a snapshot as bytes, made once however many ask, and encoded in pieces.

Readers' threads share the interpreter's lock with the loop. Between two steps of Python it changes hands within a
fraction of a millisecond (`broker.process.priority`), but a call of C keeps it to its end. So no call encodes more
than one entry of a list, a microsecond for a flow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.api.documents.flows import flow_list
from broker.api.documents.metrics import metrics
from broker.api.documents.openapi import description
from broker.api.documents.schema import Flows
from broker.api.documents.snapshot import Snapshot
from broker.api.documents.status import document

JSON, PROMETHEUS = "application/json", "text/plain; version=0.0.4; charset=utf-8"

_PAGES: Mapping[str, tuple[str, Callable[[Snapshot], Any]]] = {
    "/v1/status": (JSON, document),
    "/v1/policy": (JSON, lambda snapshot: snapshot.policy),
    "/v1/flows": (JSON, lambda snapshot: Flows(flows=flow_list(snapshot))),
    "/metrics": (PROMETHEUS, metrics),
}
"""The pages that show a snapshot: of what kind they are, and what they are made from."""
DESCRIPTION, USAGE, LOG = "/v1/openapi.json", "/v1/usage", "/v1/log"
PATHS = ("/v1/status", "/v1/policy", "/v1/flows", USAGE, LOG, DESCRIPTION, "/metrics")


class Pages:
    """For any thread."""

    def __init__(self) -> None:
        self._locks = {path: threading.Lock() for path in PATHS}
        self._made: dict[str, tuple[Snapshot | None, bytes]] = {}

    def description(self) -> tuple[str, bytes]:
        """The description of the socket, with its kind. It needs no snapshot."""
        return JSON, self._page(DESCRIPTION, None, lambda: _ENCODER.encode(description()))

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


def encoded(document: msgspec.Struct) -> bytes:
    """A document as JSON, each entry of its lists by itself."""
    fields = []
    for name in document.__struct_fields__:
        value = getattr(document, name)
        if isinstance(value, list):
            body = b"[" + b",".join([_ENCODER.encode(one) for one in value]) + b"]"
        else:
            body = _ENCODER.encode(value)
        fields.append(b'"%s":%s' % (name.encode(), body))
    return b"{" + b",".join(fields) + b"}"


_ENCODER: Final = msgspec.json.Encoder()
