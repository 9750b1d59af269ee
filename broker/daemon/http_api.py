"""The HTTP socket: status, policy, flows and metrics to read; reload and confirm to do. HTTP/1.1 over a Unix socket.

The standard library's server, made safe: GET and two POSTs, no bodies, few requests at a time, a time limit on each,
and rights by SO_PEERCRED. It runs in threads of its own, sees nothing but the last snapshot, and asks the loop to do
what is wanted.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import select
import socket
import socketserver
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from broker import precedence
from broker.client.mailbox import Wake
from broker.daemon.authority import Authority, Right, peer_of
from broker.daemon.control import REQUESTS_MAX, Answer, Request
from broker.daemon.pages import DESCRIPTION, JSON, PATHS, Pages
from broker.daemon.runtime import listen
from broker.daemon.snapshot import Snapshot
from hive_qos import __version__

REQUESTS_AT_ONCE = REQUESTS_MAX
REQUEST_TIMEOUT_S = 5.0
LOOK_S = 0.1
"""How often it is looked for requests whose time is up. While there is none the server sleeps."""
_ACTIONS = {"/v1/reload": "reload", "/v1/confirm": "confirm"}


class HttpApi:
    """The server; `close` stops it.

    Args:
        snapshot: the latest one, from any thread; None before the first tick.
        authority: who may ask, now; it may change with the policy.
        ask: has the loop do something.
    """

    def __init__(
        self,
        *,
        path: str,
        snapshot: Callable[[], Snapshot | None],
        authority: Callable[[], Authority],
        ask: Callable[[Request], Answer],
    ) -> None:
        self._path = path
        rights = authority()
        listener = listen(path, kind=socket.SOCK_STREAM, mode=rights.socket_mode, group=rights.group)
        listener.setblocking(True)
        self._server = _Server(listener, snapshot, authority, ask)
        self._thread = threading.Thread(target=self._server.serve, name="hive-broker-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket."""
        self._server.ended.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S)
        self._server.server_close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        snapshot: Callable[[], Snapshot | None],
        authority: Callable[[], Authority],
        ask: Callable[[Request], Answer],
    ) -> None:
        super().__init__(("", 0), _Handler)
        self.listener, self.snapshot, self.authority, self.ask = listener, snapshot, authority, ask
        self.pages, self.ended = Pages(), Wake()
        self._lock = threading.Lock()
        self._until_s: dict[socket.socket, float] = {}

    def serve(self) -> None:
        """Take requests until `ended` is set: `serve_forever` wakes ten times a second for nothing.

        In a thread of the server's own, whose requests have theirs: none of them goes before other programs.
        """
        precedence.give_up()
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        poll.register(self.ended.reader, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(1000 * LOOK_S if self._until_s else None)]
            if self.ended.reader in ready:
                self.ended.close()
                return
            if ready:
                self._take()
            self._end_late_requests()

    def _take(self) -> None:
        """Give a request that is there a thread of its own."""
        try:
            request, address = self.get_request()
        except OSError:  # the client went again, or there is no descriptor to spare
            return
        try:
            if self.verify_request(request, address):
                self.process_request(request, address)
                return
        except RuntimeError:  # no thread to spare
            pass
        self.shutdown_request(request)

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, _ = self.listener.accept()
        sock.settimeout(REQUEST_TIMEOUT_S)
        return sock, ("unix", 0)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take the request, unless there are too many at once: then it is closed unanswered."""
        with self._lock:
            if len(self._until_s) >= REQUESTS_AT_ONCE:
                return False
            self._until_s[request] = time.monotonic() + REQUEST_TIMEOUT_S
            return True

    def _end_late_requests(self) -> None:
        """However slowly they go on."""
        now_s = time.monotonic()
        with self._lock:
            late = [request for request, until_s in self._until_s.items() if now_s > until_s]
        for request in late:
            with contextlib.suppress(OSError):  # it ended by itself meanwhile
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._until_s.pop(request, None)
        with contextlib.suppress(OSError):  # the client went first
            request.shutdown(socket.SHUT_WR)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no event; its thread ends."""

    def server_close(self) -> None:
        self.listener.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if not self._allowed(Right.USE):
            return
        if path in _ACTIONS:
            self.do_PUT()
        elif path not in PATHS:
            self._refuse(404, f"known here: {', '.join(PATHS)}")
        elif path == DESCRIPTION:
            self._answer_page(*self.server.pages.description())
        elif (snapshot := self.server.snapshot()) is None:  # the loop is asked for what needs one alone
            self._refuse(503, "no tick yet")
        else:
            self._answer_page(*self.server.pages.of(path, snapshot))

    def do_PUT(self) -> None:
        path = self.path.split("?", 1)[0]
        if not self._allowed(Right.CHANGE if path == "/v1/policy" else Right.USE):
            return
        if path in _ACTIONS:
            self._refuse(405, f"{path} is done by a POST", allow="POST")
        else:
            self._refuse(405, "policy is changed in broker.toml, then `systemctl reload hive-qos`")

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        if path not in _ACTIONS:
            self.do_PUT()
            return
        if not self._allowed(Right.CHANGE):
            return
        try:
            wanted = urllib.parse.parse_qs(query, keep_blank_values=True, max_num_fields=4)
            trial_s = float(wanted.pop("confirm_s")[0]) if "confirm_s" in wanted and path == "/v1/reload" else None
        except ValueError:
            self._refuse(400, "confirm_s is a number of seconds")
            return
        if wanted:  # a trial that is misspelt must not become a change for good
            self._refuse(400, f"{path} knows no {', '.join(sorted(wanted))!r}")
            return
        answer = self.server.ask(Request(_ACTIONS[path], trial_s))
        self._answer_json(answer.code, {"done" if answer.code == 200 else "error": answer.text})

    do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_PUT

    def _allowed(self, wanted: Right) -> bool:
        try:
            right = self.server.authority().right_of(peer_of(self.connection))
        except OSError:
            right = Right.NONE
        if right < wanted:
            self._refuse(403, "not in the broker's group" if wanted is Right.USE else "only the admin group may change")
        return right >= wanted

    def _refuse(self, code: int, text: str, *, allow: str = "GET") -> None:
        self._answer_json(code, {"error": text}, allow=allow)

    def _answer_page(self, kind: str, body: bytes) -> None:
        self._answer(200, body, kind=kind)

    def _answer_json(self, code: int, value: Any, *, allow: str = "GET") -> None:
        self._answer(code, json.dumps(value).encode(), kind=JSON, allow=allow)

    def _answer(self, code: int, body: bytes, *, kind: str, allow: str = "GET") -> None:
        self.close_connection = True  # whatever else was sent, a body included, is not read
        self.send_response(code)
        if code == 405:
            self.send_header("Allow", allow)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return f"hive-qos/{__version__}"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: a status that is watched would fill the journal."""
