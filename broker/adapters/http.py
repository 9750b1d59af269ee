"""Asks a storage program over HTTP: bounded in time and size, no redirects, on this host or encrypted.

The time counts for the whole request: a program that sends a byte now and then does not hold us longer.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import stat
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

from broker.adapters.program import ProgramError
from broker.client.http import UnixConnection
from broker.policy.programs import UNIX_URL
from broker.policy.types import StorageProgram
from hive_qos.errors import ConfigurationError
from hive_qos.text import printable

REQUEST_S_MAX = 5.0
"""A program on this host answers in milliseconds, or in a second while it counts."""
ANSWER_BYTES_MAX = 16 * 2**20
"""The volumes of a SeaweedFS cluster with 50,000 of them are 15 MB; more than this is no answer."""
KEY_BYTES_MAX = 4096
"""A bearer token may be a kilobyte."""


class ProgramHttp:
    """One program's HTTP address, and its key.

    Args:
        headers: made of the key, for each request.
    """

    def __init__(self, program: StorageProgram, headers: Mapping[str, str]) -> None:
        self._program, self._headers = program, headers

    def text(self, method: str, path: str, body: object = None) -> str:
        """Ask, and give the answer's text.

        Raises:
            ProgramError: nobody there, too slow, a refusal, a redirect or too much.
        """
        late = threading.Event()
        try:
            with closing(self._connection()) as connection:
                connection.connect()
                timer = threading.Timer(REQUEST_S_MAX, _cut, (connection.sock, late))
                timer.daemon = True
                timer.start()
                try:
                    headers = {"Connection": "close", "Content-Type": "application/json", **self._headers}
                    connection.request(method, path, None if body is None else json.dumps(body), headers)
                    answer = connection.getresponse()
                    with answer:
                        data = answer.read(ANSWER_BYTES_MAX + 1)
                        if answer.length and len(data) <= ANSWER_BYTES_MAX:
                            raise http.client.IncompleteRead(data, answer.length)
                finally:
                    timer.cancel()
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise self._explained(problem, late=late.is_set()) from problem
        if late.is_set():
            raise self._explained(TimeoutError(), late=True)
        self._check(answer, data)
        try:
            return data.decode()
        except ValueError as problem:
            raise self._failed("unexpected", "its answer is not UTF-8 text") from problem

    def json(self, method: str, path: str, body: object = None) -> Any:
        """Ask, and give the answer's JSON; None where it is empty.

        Raises:
            ProgramError: as `text`, or it is no JSON.
        """
        text = self.text(method, path, body)
        try:
            return json.loads(text) if text.strip() else None
        except (ValueError, RecursionError) as problem:
            raise self._failed("unexpected", "its answer is not JSON; is this the right address?") from problem

    def _connection(self) -> http.client.HTTPConnection:
        url = self._program.url
        if url.startswith(UNIX_URL):
            return UnixConnection(url.removeprefix(UNIX_URL), timeout_s=REQUEST_S_MAX)
        parts = urlsplit(url)
        assert parts.hostname is not None  # the policy's check
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=REQUEST_S_MAX)
        try:
            context = ssl.create_default_context(cafile=self._program.ca_file)
        except (OSError, ValueError) as problem:
            text = f"ca_file {self._program.ca_file} cannot be used: {getattr(problem, 'strerror', None) or problem}"
            raise self._failed("refused", text) from problem
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=REQUEST_S_MAX, context=context)

    def _check(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        if answer.status in (401, 403):
            raise self._failed("refused", f"it refuses the key ({answer.status}); put the right one into key_file")
        if 300 <= answer.status < 400:
            where = printable(answer.headers.get("Location", "?"), length_max=100)
            raise self._failed("unexpected", f"it redirects to {where}; write that as url, if it is right")
        if answer.status != 200:
            raise self._failed("unexpected", f"it answers with HTTP status {answer.status}")
        if len(data) > ANSWER_BYTES_MAX:
            raise self._failed("unexpected", f"it answers with more than {ANSWER_BYTES_MAX >> 20} MiB")

    def _explained(self, problem: Exception, *, late: bool) -> ProgramError:
        """What went wrong with a request, in the operator's words."""
        if late or isinstance(problem, TimeoutError):
            return self._failed("unreachable", f"no answer within {REQUEST_S_MAX:g} s")
        if isinstance(problem, ssl.SSLError):
            text = f"TLS failed ({problem.reason}); for a certificate of its own, name it as ca_file"
            return self._failed("refused", text)
        if isinstance(problem, OSError):
            return self._failed("unreachable", problem.strerror or str(problem))
        return self._failed("unexpected", f"it does not speak HTTP here ({type(problem).__name__})")

    def _failed(self, state: str, text: str) -> ProgramError:
        return ProgramError(state, f"{self._program.kind} at {self._program.url}: {text}")


def read_key(program: StorageProgram) -> str:
    """The key in `key_file`, "" where none is configured.

    Raises:
        ConfigurationError: it cannot be read, is empty, or others may read it.
    """
    path, key = program.key_file, f"storage_program {program.name}: key_file"
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(KEY_BYTES_MAX).decode().strip()
    except OSError as problem:
        reason = f"cannot be read: {problem.strerror}; it has to belong to the user who runs `hive-qos adapter`"
        raise ConfigurationError(key, path, reason) from problem
    except ValueError as problem:
        raise ConfigurationError(key, path, "not text") from problem
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise ConfigurationError(key, path, f"others may read it; chmod 600 {path}")
    if not text.isascii() or not text.isprintable() or not text:
        raise ConfigurationError(key, path, "write the program's key into it, one line")
    return text


def basic(key: str) -> Mapping[str, str]:
    """The header for `user:password`."""
    return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"} if key else {}


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """End a request whose time is up, from the timer's thread."""
    late.set()
    with suppress(OSError):  # it ended meanwhile
        sock.shutdown(socket.SHUT_RDWR)
