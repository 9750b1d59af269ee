"""The HTTP socket: status, policy, flows, usage and metrics to read; changes of policy to do. HTTP/1.1, Unix socket.

GET and some POSTs, no bodies, no descriptors, few requests at a time and of a user, and rights by SO_PEERCRED. It runs
in threads of its own, sees nothing but the last snapshot, and asks the loop to do what is wanted.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from broker.api.bounded_server import REQUEST_TIMEOUT_S, BoundedHandler, BoundedServer, Timed
from broker.api.documents.pages import DESCRIPTION, JSON, LOG, PATHS, USAGE, Pages, encoded
from broker.api.documents.schema import Done, Error, UsageReport
from broker.api.documents.snapshot import Snapshot
from broker.api.latest_snapshot import NOTHING
from broker.api.log import recent_log
from broker.api.questions import ACTIONS, LogQuestion, Question, UsageQuestion, read_query
from broker.api.requests import PolicyAnswer, PolicyRequest
from broker.events.recent import RecentEvents
from broker.model.usage import UsageRow
from broker.process.closer_client import CloserClient
from broker.process.locks import listen
from broker.process.rights import Authority, Peer, Right, peer_of
from hive_qos.errors import HiveError

REQUESTS_AT_ONCE = {Right.NONE: 4, Right.USE: 12, Right.CHANGE: 16}
"""Of all who have at most this right: nobody keeps out those who may do more."""
REQUESTS_PER_USER_MAX = 4
"""Of one user who may not change policy."""
REPORT_WAIT_S = 1.0
"""For the report of somebody else: one is made at a time, for they are made for each who asks."""


class HttpApi:
    """The server; `close` stops it.

    Args:
        snapshot: the latest one, from any thread; None before the first tick.
        authority: who may ask, now; it may change with the policy.
        ask: has the loop do something.
        usage: as `Accounts.rows`.
        recent: the last events of the log.
        closing: gets the connections that are over.
    """

    def __init__(
        self,
        *,
        path: str,
        snapshot: Callable[[], Snapshot | None],
        authority: Callable[[], Authority],
        ask: Callable[[PolicyRequest], PolicyAnswer],
        usage: Callable[..., list[UsageRow]],
        recent: RecentEvents,
        closing: CloserClient,
    ) -> None:
        self._path = path
        rights = authority()
        listener = listen(path, kind=socket.SOCK_STREAM, mode=rights.socket_mode, group=rights.group)
        listener.setblocking(True)
        self._server = _Server(listener, snapshot, authority, ask, usage, recent, closing)
        self._thread = threading.Thread(target=self._server.serve, name="hive-broker-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket."""
        self._server.ended.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S)
        self._server.server_close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _Open(Timed):
    """A request and whose it is. It has no time limit while the loop has it."""

    def __init__(self, peer: Peer, right: Right) -> None:
        super().__init__()
        self.peer, self.right = peer, right


class _Server(BoundedServer[_Open]):
    def __init__(
        self,
        listener: socket.socket,
        snapshot: Callable[[], Snapshot | None],
        authority: Callable[[], Authority],
        ask: Callable[[PolicyRequest], PolicyAnswer],
        usage: Callable[..., list[UsageRow]],
        recent: RecentEvents,
        closing: CloserClient,
    ) -> None:
        super().__init__(listener, _Handler)
        self.snapshot, self.authority, self._ask = snapshot, authority, ask
        self.pages, self.usage, self.recent, self.reporting = Pages(), usage, recent, threading.Lock()
        self._closing = closing

    def waits(self) -> bool:
        return self._closing.full

    def admitted(self, request: socket.socket, now_open: list[_Open]) -> _Open | None:
        peer = peer_of(request)
        right = self.authority().right_of(peer)
        theirs = [one for one in now_open if one.right <= right]
        own = sum(one.peer.uid == peer.uid for one in theirs)
        if len(theirs) >= REQUESTS_AT_ONCE[right] or (right < Right.CHANGE and own >= REQUESTS_PER_USER_MAX):
            return None
        return _Open(peer, right)

    def right_of(self, request: Any) -> Right:
        """What the sender of a request may do now."""
        return self.authority().right_of(self._open[request].peer)

    def ask(self, wanted: PolicyRequest, *, by: Any) -> PolicyAnswer:
        """Have the loop do what a request asks for. Its time goes on with the answer."""
        self._open[by].until_s = None
        try:
            return self._ask(wanted)
        finally:
            self._open[by].until_s = time.monotonic() + REQUEST_TIMEOUT_S

    def release(self, request: socket.socket, over: _Open | None) -> None:
        self._closing.take([request.detach()], uid=over.peer.uid if over is not None else -1)


class _PlainBytes(io.RawIOBase):
    """What a client sends, without descriptors: received they would be ours to close, which lasts as long as he chose.

    Raises:
        ConnectionAbortedError: some came.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        there, _, flags, _ = self._sock.recvmsg(len(memoryview(buffer)), 0, socket.MSG_PEEK)
        if flags & socket.MSG_CTRUNC:
            raise ConnectionAbortedError("descriptors have no place in a request")
        return self._sock.recv_into(buffer, len(there)) if there else 0


class _Handler(BoundedHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_PlainBytes(self.connection))

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if not self._allowed(Right.USE):
            return
        if path in ACTIONS:
            self.do_PUT()
        elif path == USAGE:
            self._answer_usage()
        elif path == LOG:
            self._answer_log()
        elif path not in PATHS:
            self._refuse(404, f"known here: {', '.join(PATHS)}")
        elif path == DESCRIPTION:
            self._answer_page(*self.server.pages.description())
        elif (snapshot := self.server.snapshot()) is None:  # the loop is asked for what needs one alone
            self._refuse(503, NOTHING)
        else:
            self._answer_page(*self.server.pages.of(path, snapshot))

    def do_PUT(self) -> None:
        path = self.path.split("?", 1)[0]
        if not self._allowed(Right.CHANGE if path == "/v1/policy" else Right.USE):
            return
        if path in ACTIONS:
            self._refuse(405, f"{path} is done by a POST", allow="POST")
        else:
            self._refuse(405, "policy is changed in broker.toml, then `systemctl reload hive-qos`")

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        if path not in ACTIONS:
            self.do_PUT()
            return
        if not self._allowed(Right.CHANGE):
            return
        if (asked := self._asked(ACTIONS[path], query)) is None:
            return
        answer = self.server.ask(PolicyRequest(path.removeprefix("/v1/"), asked), by=self.request)
        done = Done(answer.text, answer.note) if answer.code == 200 else Error(answer.text)
        self._answer_json(answer.code, done)

    do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_PUT

    def _answer_usage(self) -> None:
        """What was carried, lent, borrowed and repaid; read from the file in this request's thread."""
        if (wanted := self._asked(UsageQuestion, self.path.partition("?")[2])) is None:
            return
        until_s = time.time() if wanted.until_s is UNSET else wanted.until_s
        if not self.server.reporting.acquire(timeout=REPORT_WAIT_S):
            self._refuse(503, "another report is being made")
            return
        try:
            rows = self.server.usage(since_s=wanted.since_s, until_s=until_s, by=wanted.by)
            body = encoded(UsageReport(since_s=wanted.since_s, until_s=until_s, rows=rows))
        except (HiveError, OSError) as problem:
            self._refuse(503, str(problem))
            return
        finally:
            self.server.reporting.release()
        self._answer(200, body, kind=JSON)

    def _answer_log(self) -> None:
        """The last events; they need no snapshot, so the log of a loop that hangs can be read."""
        if (wanted := self._asked(LogQuestion, self.path.partition("?")[2])) is not None:
            self._answer(200, encoded(recent_log(self.server.recent, wanted)), kind=JSON)

    def _asked(self, kind: type[Question], query: str) -> Question | None:
        """What a query says; None where it cannot be understood, and that was answered."""
        try:
            return read_query(kind, query)
        except ValueError as problem:
            self._refuse(400, f"{self.path.partition('?')[0]}: {problem}")
            return None

    def _allowed(self, wanted: Right) -> bool:
        right = self.server.right_of(self.request)
        if right < wanted:
            self._refuse(403, "not in the broker's group" if wanted is Right.USE else "only the admin group may change")
        return right >= wanted

    def _refuse(self, code: int, text: str, *, allow: str = "GET") -> None:
        self._answer_json(code, Error(text), allow=allow)

    def _answer_page(self, kind: str, body: bytes) -> None:
        self._answer(200, body, kind=kind)

    def _answer_json(self, code: int, value: Done | Error, *, allow: str = "GET") -> None:
        self._answer(code, encoded(value), kind=JSON, allow=allow)
