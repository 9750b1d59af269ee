"""A threaded HTTP server for a few requests at a time, each with a time limit, that no client can hold up.

The standard library's server, made safe. Who may ask, and how many at once, is the subclass' to say; a request whose
time is up is shut down however slowly it goes on.
"""

from __future__ import annotations

import contextlib
import http.server
import select
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from broker.client.mailbox import Wake
from broker.process import priority
from hive_qos import __version__

REQUEST_TIMEOUT_S = 5.0
"""For reading a request, and again for writing its answer."""
LOOK_S = 0.1
"""How often it is looked for requests whose time is up. While there is none the server sleeps."""


class Timed:
    """A request that is served. `until_s` is None while somebody else has it."""

    def __init__(self) -> None:
        self.until_s: float | None = time.monotonic() + REQUEST_TIMEOUT_S


Open = TypeVar("Open", bound=Timed)


class BoundedServer(socketserver.ThreadingMixIn, socketserver.BaseServer, Generic[Open]):
    """The server; `serve` takes requests until `ended` is set.

    Args:
        listener: a bound, listening socket.
        handler: is made for each request, in its thread.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: Any) -> None:
        super().__init__(("", 0), handler)
        self.listener, self.ended = listener, Wake()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Open] = {}

    def admitted(self, request: socket.socket, now_open: list[Open]) -> Open | None:
        """What to remember of a request that may be served beside those that are; None turns it away.

        Raises:
            OSError: nobody knows whose it is.
        """
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether no request may be taken at this moment."""
        return False

    def release(self, request: socket.socket, over: Open | None) -> None:
        """Close a request that is over and shut down."""
        request.close()

    def serve(self) -> None:
        """Take requests until `ended` is set: `serve_forever` wakes ten times a second for nothing.

        In a thread of the server's own, whose requests have theirs: none of them goes before other programs.
        """
        priority.give_up()
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        poll.register(self.ended.reader, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(1000 * LOOK_S if self._open else None)]
            if self.ended.reader in ready:
                self.ended.close()
                return
            if ready and self.waits():
                time.sleep(LOOK_S)
            elif ready:
                self._take()
            self._end_late_requests()

    def _take(self) -> None:
        """Give a request that is there a thread of its own."""
        try:
            request, address = self.get_request()
        except OSError:  # the client went again, or there is no descriptor to spare
            time.sleep(LOOK_S)
            return
        try:
            if self.verify_request(request, address):
                self.process_request(request, address)
                return
        except (OSError, RuntimeError):  # nobody knows whose it is; no thread to spare
            pass
        self.shutdown_request(request)

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, address = self.listener.accept()
        sock.settimeout(REQUEST_TIMEOUT_S)
        return sock, address or ("unix", 0)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take the request, unless there are too many at once: then it is closed unanswered."""
        with self._lock:
            taken = self.admitted(request, list(self._open.values()))
            if taken is not None:
                self._open[request] = taken
            return taken is not None

    def _end_late_requests(self) -> None:
        """However slowly they go on."""
        now_s = time.monotonic()
        with self._lock:
            late = [one for one, how in self._open.items() if how.until_s is not None and now_s > how.until_s]
        for request in late:
            with contextlib.suppress(OSError):  # it ended by itself meanwhile
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            over = self._open.pop(request, None)
        with contextlib.suppress(OSError):  # the client went first
            request.shutdown(socket.SHUT_RDWR)
        self.release(request, over)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no event; its thread ends."""

    def server_close(self) -> None:
        self.listener.close()


class BoundedHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request, then the connection is closed. `SAFEGUARDS` are the headers of every answer."""

    protocol_version = "HTTP/1.1"
    SAFEGUARDS: ClassVar[Mapping[str, str]] = {}

    def _answer(self, code: int, body: bytes, *, kind: str, allow: str = "GET") -> None:
        self.close_connection = True  # whatever else was sent, a body included, is not read
        self.send_response(code)
        if code == 405:
            self.send_header("Allow", allow)
        for name, value in self.SAFEGUARDS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return f"hive-qos/{__version__}"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: a page or a status that is watched would fill the journal."""
