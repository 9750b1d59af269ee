"""A program's session with the broker of its host: it never blocks and never raises.

Every call puts something into a bounded mailbox and returns; a thread (`broker.client.link`) connects, sends, and
reconnects with back-off. Bursts alone are sent at once, where nothing waits before them: a thread of a program that
begins to send may wake 5 ms late (Python's switch interval), which is what a hold may take in all. When the broker is
absent, dies or comes back, sockets are registered again by themselves, bursts that are still ahead are announced late,
and everything that is stale is dropped. After a fork the child's copy is inert: sockets belong to the process that
registered them.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from broker.client import link, protocol
from broker.client.mailbox import REGISTRATIONS_MAX, Allowance, Mailbox, Registration, SessionState


class Session:
    """One program's session.

    Args:
        job: the job whose traffic this is; bursts and flows of one job are counted together.
        socket_path: the broker's session socket; None means `$HIVE_BROKER`, else `/run/hive-qos/session.sock`;
            "off" makes a session that does nothing.
        client: what kind of program this is, for `hive-qos status`.
    """

    def __init__(self, *, job: str, socket_path: str | None = None, client: str = "transport") -> None:
        path = protocol.session_socket_path(socket_path)
        self._box = Mailbox(job=_name(job), client=_name(client))
        self._thread: threading.Thread | None = None
        if path is None:
            self._box.state = SessionState.OFF
            self._box.wake.close()
            return
        self._thread = threading.Thread(
            target=link.run, args=(self._box, path), name="hive-broker-session", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, link.end, self._box)
        _sessions.add(self)

    @property
    def state(self) -> SessionState:
        """Where the session stands now."""
        return self._box.state

    @property
    def rejections(self) -> tuple[str, ...]:
        """The last refusals of the broker, oldest first, each as "code: text"."""
        with self._box.lock:
            return tuple(self._box.rejections)

    @property
    def reconnects(self) -> int:
        """How often the broker had to be found again."""
        return self._box.reconnects

    @property
    def flows(self) -> tuple[str, ...]:
        """The broker's names of the sockets that it has marked, empty while it is away."""
        with self._box.lock:
            return tuple(name for names in self._box.flows.values() for name in names)

    def register(self, sock: socket.socket, *, traffic_class: str, role: str) -> int:
        """Have the broker mark a UDP or TCP socket, now and after every restart of the broker.

        The session keeps a weak reference: keep the socket object alive and open for as long as it should stay marked
        (where a library takes the descriptor over by `detach()`, register a `dup()` and keep that).

        Args:
            sock: an AF_INET or AF_INET6 socket.
            traffic_class: `control`, `compute`, `storage` or `other`; the broker may refuse by policy.
            role: `gradient`, `bulk` or `storage`; bulk yields to gradients within `compute`.

        Returns:
            A number for `unregister`, 0 when nothing was taken: the session is off or closed, or has 256 open sockets
            (`rejections` tells).
        """
        box = self._box
        if not self._live():
            return 0
        with box.lock:
            for former in [one for one in box.registrations.values() if one.closed]:
                box.forget(former.number)
            if len(box.registrations) >= REGISTRATIONS_MAX:
                box.rejections.append(f"too-many: a session has at most {REGISTRATIONS_MAX} sockets at once")
                return 0
            number = box.number()
            box.registrations[number] = Registration(number, weakref.ref(sock), traffic_class, role)
            box.tell(number)
        box.wake.set()
        return number

    def unregister(self, number: int) -> None:
        """Forget a socket: it keeps its class until it is closed, but is not registered again.

        Closed sockets are also forgotten at the next `register`.
        """
        if self._live():
            with self._box.lock:
                self._box.forget(number)
            self._box.wake.set()

    def announce(
        self, *, step: int, bytes_by_destination: Mapping[str, int], deadline_s: float, next_s: float | None = None
    ) -> None:
        """Announce a burst that begins, or is about to; again for the same step, that it has so much more.

        Args:
            step: the job's step, to match `announce_end`.
            bytes_by_destination: bytes to each literal address.
            deadline_s: seconds from now by which they should have arrived.
            next_s: seconds from now at which the next burst is expected, where that is known.
        """
        message: dict[str, Any] = {
            "op": "burst",
            "job": self._box.job,
            "step": step,
            "bytes": dict(bytes_by_destination),
            "deadline_s": deadline_s,
        }
        if next_s is not None:
            message["next_s"] = next_s
        self._queue_burst(message)

    def announce_end(self, *, step: int) -> None:
        """Say that the burst of `step` is over, so that what was held back for it is released at once."""
        self._queue_burst({"op": "burst-end", "job": self._box.job, "step": step})

    def need(
        self, *, backlog_bytes: int, deadline_s: float | None = None, replicas_at_risk: int | bool = 0,
        bytes_by_destination: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Declare what storage has to do, instead of what was declared before; for a broker that comes back, too.

        Say it again when it changes, and at least every half minute: after a minute the broker takes a program for
        hung. It ends with `backlog_bytes=0` and with the session.

        Args:
            backlog_bytes: what is still to be sent.
            deadline_s: seconds from now by which it has to be; None where there is no hurry but as soon as possible.
            replicas_at_risk: how many objects have too few copies meanwhile, or whether any have.
            bytes_by_destination: the backlog by literal address; else it counts at every interface.
        """
        message: dict[str, Any] = {
            "op": "need", "backlog_bytes": backlog_bytes, "replicas_at_risk": replicas_at_risk
        }  # fmt: skip
        if deadline_s is not None:
            message["deadline_s"] = deadline_s
        if bytes_by_destination:
            message["bytes"] = dict(bytes_by_destination)
        box = self._box
        if not self._live():
            return
        with box.lock:
            message["id"] = box.number()
            box.need, box.need_unsent = (time.monotonic(), message), True
        box.wake.set()

    def program(
        self, *, name: str, kind: str, state: str, text: str = "", limit_bits_per_s: int | None = None,
        upload_bytes: int = 0, waiting_bytes: int = 0, download_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Tell how a storage program does that this one speaks for, every few seconds; `allowance` is the answer.

        Args:
            name, kind: as `hive-qos status` shows them.
            state: `working`, `unreachable`, `refused` or `unexpected`; `text` says what is to be done.
            limit_bits_per_s: the program's own limit, None without one.
            upload_bytes, waiting_bytes, download_bytes: what it has to send, to send later, and to get.
        """
        box = self._box
        if not self._live():
            return
        message: dict[str, Any] = {
            "op": "program", "name": name, "kind": kind, "state": state, "text": text, "upload_bytes": upload_bytes,
            "waiting_bytes": waiting_bytes, "download_bytes": download_bytes,
        }  # fmt: skip
        if limit_bits_per_s is not None:
            message["limit_bits_per_s"] = limit_bits_per_s
        with box.lock:
            message["id"] = box.number()
            box.program, box.program_unsent = message, True
        box.wake.set()

    @property
    def allowance(self) -> Allowance | None:
        """What class storage may use now; None without a recent answer to `program`."""
        with self._box.lock:
            allowance, until_s = self._box.allowance
        return allowance if time.monotonic() < until_s else None

    def report(self, connections: Sequence[Mapping[str, Any]]) -> None:
        """Tell what connections measure (the keys are in `docs/reference/broker-api.md`), about every 100 ms.

        Dropped while no broker is there, and the oldest first when it does not keep up.
        """
        box = self._box
        if not self._live() or box.state is not SessionState.CONNECTED:
            return
        with box.lock:
            for start in range(0, len(connections), protocol.CONNECTIONS_PER_REPORT):
                chosen = connections[start : start + protocol.CONNECTIONS_PER_REPORT]
                part = [{key: _finite(value) for key, value in one.items()} for one in chosen]
                box.reports.append({"op": "report", "connections": part})
        box.wake.set()

    def close(self) -> None:
        """Say goodbye and end the thread, within about a second. Idempotent; registered sockets stay as they are."""
        link.end(self._box)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _live(self) -> bool:
        return self._box.state in (SessionState.CONNECTING, SessionState.CONNECTED)

    def _queue_burst(self, message: dict[str, Any]) -> None:
        box = self._box
        if not self._live():
            return
        with box.lock:
            message["id"] = box.number()
            if link.send_now(box, message):
                return
            box.bursts.append((time.monotonic(), message))
        box.wake.set()

    def _after_fork_in_child(self) -> None:
        # The thread does not exist here and the lock may be held for ever: replace, never acquire.
        box, self._thread = self._box, None
        self._box = Mailbox(job=box.job, client=box.client, state=SessionState.OFF)
        self._box.wake.close()
        box.state = SessionState.OFF
        box.lock = threading.RLock()
        box.wake.close_in_child()
        if box.connection is not None:
            box.connection.close()  # this process' copy; the parent's session does not notice


def _name(text: str) -> str:
    """Cut a name, and replace what UTF-8 cannot hold: a name from the environment may be any bytes."""
    return text[: protocol.NAME_CHARS_MAX].encode(errors="replace").decode()


def _finite(value: object) -> object:
    """What was not measured yet is often infinite or NaN; JSON has neither, and the broker wants nothing then."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for session in list(_sessions):
        session._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
