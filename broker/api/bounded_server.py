"""A threaded server for a few requests at a time, each with a time limit, that no client can hold up.

The standard library's server, made safe. Who may ask, and how many at once, is the subclass' to say; a request whose
time is up is shut down however slowly it goes on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
import time
from typing import Any, Generic, TypeVar

from broker.client.mailbox import Wake
from broker.process import priority

REQUEST_TIMEOUT_S = 5.0
"""For reading a request, and again for writing its answer."""
LOOK_S = 0.1
"""How often it is looked for requests whose time is up. While there is none the server sleeps."""


class Timed:
    """A request that is served. `until_s` is None while somebody else has it."""

    def __init__(self, *, timeout_s: float) -> None:
        self.until_s: float | None = time.monotonic() + timeout_s


Open = TypeVar("Open", bound=Timed)


class BoundedServer(socketserver.ThreadingMixIn, socketserver.BaseServer, Generic[Open]):
    """The server; `serve` takes requests until `ended` is set.

    Args:
        listener: a bound, listening socket.
        handler: is made for each request, in its thread.
        timeout_s: for each read and write of a request.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: Any, *, timeout_s: float) -> None:
        super().__init__(("", 0), handler)
        self.listener, self.ended, self._timeout_s = listener, Wake(), timeout_s
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
        sock.settimeout(self._timeout_s)
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
