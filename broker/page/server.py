"""HTTP over TCP for browsers and Prometheus: the page, its figures, and metrics. It only reads the last snapshot.

Whoever reaches the address may read, so little is shown (`broker.page.view`), and nobody can make the loop work: a
request gets the snapshot that is there. Browsers are kept from lending the page to others: by the Host header, against
names that somebody points here (DNS rebinding), and by the headers of each answer.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Collection
from importlib import resources
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.api.bounded_server import REQUEST_TIMEOUT_S, BoundedHandler, BoundedServer, Timed
from broker.api.documents.metrics import metrics
from broker.api.documents.pages import JSON, PROMETHEUS
from broker.api.documents.snapshot import Snapshot
from broker.api.latest_snapshot import NOTHING, LatestSnapshot
from broker.model.token_bucket import TokenBucket, TokenBuckets
from broker.page.history import SPANS, History
from broker.page.view import view
from broker.policy.listen import address_and_port
from broker.policy.types import PagePolicy

REQUESTS_AT_ONCE, REQUESTS_PER_ADDRESS_MAX = 16, 6
"""Of everybody, and of one address: as many as a browser opens."""
REQUESTS_PER_S, REQUESTS_BURST = 20.0, 40.0
"""A page that is open asks once a second. More are closed unanswered: the figures cost processor time."""
ADDRESS_PER_S, ADDRESS_BURST, ADDRESSES_MAX = 10.0, 20.0, 256
"""Of one address, and of how many: half of everybody's, so that one alone shuts no other out."""
FIGURES, METRICS = "/figures.json", "/metrics"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer:
    """The server; `close` stops it.

    Args:
        policy: where it listens.
        latest: what the page shows, and metrics unless the loop hangs.
        history: of this daemon.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(self, policy: PagePolicy, *, latest: LatestSnapshot, history: History) -> None:
        address, port = address_and_port(policy.listen)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(REQUESTS_AT_ONCE)
        except OSError:
            listener.close()
            raise
        names = {"localhost", socket.gethostname().lower(), *policy.names}
        self._server = _Server(listener, names=names, latest=latest, history=history)
        self._thread = threading.Thread(target=self._server.serve, name="hive-broker-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.ended.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S)
        self._server.server_close()


class _Open(Timed):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


class _Server(BoundedServer[_Open]):
    def __init__(
        self,
        listener: socket.socket,
        *,
        names: Collection[str],
        latest: LatestSnapshot,
        history: History,
    ) -> None:
        super().__init__(listener, _Handler)
        self.names, self.latest, self.history = names, latest, history
        self.started = secrets.token_hex(8)
        self._bucket = TokenBucket(per_s=REQUESTS_PER_S, at_once=REQUESTS_BURST, now_s=time.monotonic())
        self._of_address = TokenBuckets[str](per_s=ADDRESS_PER_S, at_once=ADDRESS_BURST, remembered=ADDRESSES_MAX)
        self._shown: tuple[Snapshot | None, bytes] = (None, b"null")
        self._figures_lock = threading.Lock()

    def admitted(self, request: socket.socket, now_open: list[_Open]) -> _Open | None:
        address = request.getpeername()[0]
        theirs = sum(one.address == address for one in now_open)
        if len(now_open) >= REQUESTS_AT_ONCE or theirs >= REQUESTS_PER_ADDRESS_MAX:
            return None
        now_s = time.monotonic()
        allowed = self._of_address.take(address, now_s=now_s) and self._bucket.take(now_s=now_s)
        return _Open(address) if allowed else None

    def figures(self, snapshot: Snapshot, *, step_s: int, since: int) -> bytes:
        """The present, and the history from a step on. `started` differs after a restart.

        One at a time, and in small pieces: while msgspec encodes, the loop waits for the interpreter.
        """
        with self._figures_lock:
            shown, view_json = self._shown
            if shown is not snapshot:
                view_json = msgspec.json.encode(view(snapshot))
                self._shown = snapshot, view_json
            span = self.history.span(step_s, since=since)
            series = b",".join(msgspec.json.encode(one) for one in span.series)
        head = msgspec.json.encode(replace(span, series=()))
        span_json = head.removesuffix(b"]}") + series + b"]}"
        return b'{"started":"%s","view":%s,"span":%s}' % (self.started.encode(), view_json, span_json)


class _Handler(BoundedHandler):
    server: _Server
    SAFEGUARDS = HEADERS

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._host_is_ours():
            self._answer_text(421, "not a name of this page; add it to `names` in [page] of broker.toml")
        elif path in FILES:
            name, kind = FILES[path]
            self._answer(200, resources.files(__package__).joinpath(name).read_bytes(), kind=kind)
        elif path not in (FIGURES, METRICS):
            self._answer_text(404, f"known here: {', '.join((*FILES, FIGURES, METRICS))}")
        elif (snapshot := self.server.latest.current if path == METRICS else self.server.latest.last) is None:
            self._answer_text(503, NOTHING)
        elif path == METRICS:
            self._answer(200, metrics(snapshot), kind=PROMETHEUS)
        else:
            self._answer_figures(snapshot, query)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer_text(405, "this page changes nothing")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_POST

    def _answer_figures(self, snapshot: Snapshot, query: str) -> None:
        try:
            wanted = urllib.parse.parse_qs(query, strict_parsing=bool(query), max_num_fields=2)
            step_s, since = int(wanted.get("step_s", ["1"])[0]), int(wanted.get("since", ["0"])[0])
        except ValueError:
            step_s = since = -1
        if step_s not in SPANS or since < 0:
            self._answer_text(400, f"step_s is one of {', '.join(map(str, SPANS))}, since a step")
        else:
            self._answer(200, self.server.figures(snapshot, step_s=step_s, since=since), kind=JSON)

    def _host_is_ours(self) -> bool:
        """Whether the Host header is an address, or a name of ours: a foreign name was pointed here by somebody."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        try:
            name = urllib.parse.urlsplit(f"//{hosts[0].strip()}").hostname or ""
        except ValueError:
            return False
        if name.removesuffix(".") in self.server.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _answer_text(self, code: int, text: str) -> None:
        self._answer(code, f"{text}\n".encode(), kind="text/plain; charset=utf-8", allow="GET, HEAD")
