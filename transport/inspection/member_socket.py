"""The Unix socket of one member of a job, at which commands of `hive-qos` ask (`transport.inspection.jobs`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from broker.client.trust import listener_of
from transport.inspection.jobs import REQUEST_BYTES_MAX, SUFFIX, make_folder, reachable

LIMIT_S_MAX = 30.0
"""Longest that a question may let the others think."""
PATIENCE_S = 2.0
"""For who asks to say what, and to take the answer."""
NAME_CHARACTERS_MAX = 32
WAITING_MAX = 8
_log = logging.getLogger("transport.inspection")


class MemberSocket:
    """Listens until it is closed. Where there is no place for a socket, nobody can ask, and the log says so once.

    Args:
        job, name: of the member; the file's name begins with them.
        answer: the document that is wanted (`jobs.ask`), within so many seconds. Called in the socket's thread.
    """

    def __init__(self, *, job: str, name: str, answer: Callable[[str, float], Mapping[str, object]]) -> None:
        self._answer = answer
        self._process = os.getpid()
        self._socket: socket.socket | None = None
        self.path: Path | None = None
        try:
            folder = make_folder()
            _sweep(folder)
            self.path = folder / f"{_plain(job)}.{_plain(name)}.{secrets.token_hex(4)}{SUFFIX}"
            self._socket = _listening(self.path)
        except OSError as error:
            _log.info("`hive-qos job` cannot ask this process: %s", error)
            self.path = None
            return
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="hive-member", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the socket away. Idempotent; in a forked child it does nothing."""
        sock, self._socket = self._socket, None
        if sock is None or os.getpid() != self._process:
            return
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # what waits in `accept` wakes up
        if threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE_S)
        sock.close()

    def _serve(self, listening: socket.socket) -> None:
        while self._socket is not None:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            with sock:
                try:
                    self._answer_one(sock)
                except (OSError, ValueError) as error:
                    _log.info("a question about this member was not answered: %s", error)
                except Exception:  # noqa: BLE001 - a mistake of ours must not end the thread
                    _log.exception("a question about this member failed")

    def _answer_one(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        if listener_of(sock) not in (0, os.geteuid()):
            raise PermissionError("another user asked")
        data = sock.recv(REQUEST_BYTES_MAX)
        if not data:  # somebody who only looked whether we are there
            return
        asked = json.loads(data)
        if not isinstance(asked, dict):
            raise ValueError("no object")
        limit_s = asked.get("limit_s")
        limit_s = min(float(limit_s), LIMIT_S_MAX) if isinstance(limit_s, (int, float)) and limit_s > 0 else PATIENCE_S
        sock.sendall(json.dumps(self._answer(str(asked.get("want")), limit_s)).encode() + b"\n")


def _listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as name:
            new = f"{name}.new"  # who sweeps takes it for a dead one until it listens
            sock.bind(new)
            os.chmod(new, 0o600)
            sock.listen(WAITING_MAX)
            os.rename(new, name)
    except BaseException:
        sock.close()
        raise
    return sock


def _sweep(folder: Path) -> None:
    """Remove sockets at which nobody listens: their processes were killed."""
    for path in folder.iterdir():
        if not path.name.endswith(SUFFIX):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(BlockingIOError):
            probe.setblocking(False)
            try:
                with reachable(path) as name:
                    probe.connect(name)
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except FileNotFoundError:
                pass


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:NAME_CHARACTERS_MAX] or "-"
