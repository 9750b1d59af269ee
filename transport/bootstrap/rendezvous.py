"""How ranks find each other before they are connected: a small store of keys that all of them reach.

A store says only where a rank listens and what its certificate's fingerprint is. Who can write to it can pretend to be
a rank, unless `HIVE_JOB_SECRET` authenticates the entries or certificates of a cluster's CA are configured.
torch's stores fit the protocol through `integrations`.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import math
import os
import resource
import secrets
import socket
import socketserver
import stat
import struct
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, Protocol

from hive_qos.errors import ConfigurationError, ConnectionLostError, MisuseError, TimedOutError, TransportError

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 64 * 1024
"""An entry is a few hundred bytes; a certificate chain would be several thousand."""
ENTRIES_MAX = 100_000
ENTRIES_BYTES_MAX = 64 * 2**20
"""Of a store in memory: 100 000 ranks of 600 bytes."""
CLIENTS_MAX = 1024
"""Connections that a served store answers at once, a thread each; one more is closed, and its client asks again. They
take at most half of the descriptors that the process may have."""
CLIENT_READ_S = 10.0
"""A request is at most 64 KiB, and follows the connection at once; so is an answer."""
SET_S = 60.0
"""`set` waits so long for rank 0, which may start a minute later than others."""
GONE_S = 2.0
"""A served store that was reached and then refuses connections for so long does not come back with what it held."""
TOKEN_BYTES = 16
POLL_S = 0.02
POLL_S_MAX = 0.32
"""Between questions over TCP for what is not there yet: each takes a connection and a thread of rank 0's."""
WARN_S = 3.0
"""After so long without an answer it is said what is waited for: ranks that are started together are there by then."""


class Rendezvous(Protocol):
    """What `Group.connect` needs of a store. Both methods may block; both may be called from any thread."""

    def set(self, key: str, value: bytes) -> None:
        """Publish `value` (at most 64 KiB) under `key`, replacing what is there."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of `key`, waiting for it to appear.

        Raises:
            TimedOutError: nobody has published it in time.
        """


class MemoryRendezvous:
    """A store for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        _check(key, value)
        with self._changed:
            old = self._values.get(key)
            grown = self._bytes + len(value) + (len(key) if old is None else -len(old))
            if (old is None and len(self._values) >= ENTRIES_MAX) or grown > ENTRIES_BYTES_MAX:
                raise MisuseError(f"a rendezvous holds at most {ENTRIES_MAX} entries and {ENTRIES_BYTES_MAX} bytes")
            self._values[key] = bytes(value)
            self._bytes = grown
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimedOutError(f"rendezvous key {key}", timeout_s=timeout_s)
            return self._values[key]


class FileRendezvous:
    """A store in a directory that all ranks see: one host, or a shared file system. Nothing is deleted by it.

    Links in the directory are not followed, and only this user and root may write in it.

    Args:
        directory: made, for this user alone, if it is not there; use a new one for every run.

    Raises:
        ConfigurationError: it is no directory, it is somebody else's, or others may write in it; so `get` of an entry.
            `set`, where another run or rank has set the same.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._own: set[Path] = set()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigurationError("rendezvous", str(directory), "is no directory") from error
        _check_ours(self._directory, self._directory.stat())

    def set(self, key: str, value: bytes) -> None:
        _check(key, value)
        path = self._path(key)
        if path not in self._own and path.is_file() and not path.is_symlink():
            reason = "is there already: this rank was started twice, or another run has used this directory; take a new"
            raise ConfigurationError("rendezvous", str(path), f"{reason} one for every run")
        self._own.add(path)
        draft = path.with_name(f".{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(value)
        draft.replace(path)  # readers see all of it or nothing

    def get(self, key: str, timeout_s: float) -> bytes:
        path = self._path(key)
        give_up_s = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(FileNotFoundError):
                return _read_entry(path)
            if time.monotonic() >= give_up_s:
                raise TimedOutError(f"rendezvous key {key}", timeout_s=timeout_s)
            time.sleep(POLL_S)

    def _path(self, key: str) -> Path:
        return self._directory / urllib.parse.quote(key, safe="")


def _read_entry(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigurationError("rendezvous", str(path), "is a link: links are not followed") from error
        raise
    try:
        found = os.fstat(descriptor)
        _check_ours(path, found)
        if not stat.S_ISREG(found.st_mode) or found.st_size > VALUE_BYTES_MAX:
            reason = f"is no file of at most {VALUE_BYTES_MAX} bytes"
            raise ConfigurationError("rendezvous", str(path), reason)
        return os.read(descriptor, VALUE_BYTES_MAX)
    finally:
        os.close(descriptor)


def _check_ours(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            "rendezvous", str(path), f"belongs to user {found.st_uid}: use a directory of your own"
        )
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        reason = f"others may write to it (mode {mode:04o}); write `chmod go-w {path}`, or use a directory of your own"
        raise ConfigurationError("rendezvous", str(path), reason)


# One request a connection: "S" or "G", u16 key length, u32 value length, 16 bytes that the client made up, key, value.
# The answer, at once: "K" u32 length value, "N" (not there yet), or "X" (refused: full, or set by a client of other 16
# bytes).
_REQUEST = struct.Struct(f"!cHI{TOKEN_BYTES}s")
_ANSWER = struct.Struct("!cI")
_log = logging.getLogger("transport.bootstrap.rendezvous")


def host_and_port(key: str, address: str, *, host: str = "", port_min: int = 1) -> tuple[str, int]:
    """Read "host:port" or "[IPv6 address]:port".

    Args:
        key: what the address is of, for errors.
        host: of an address without one; "" demands one.

    Raises:
        ConfigurationError: it is not of that form.
    """
    name, _, port = address.rpartition(":")
    if not (name or host) or not (port.isascii() and port.isdigit() and port_min <= int(port) < 65536):
        raise ConfigurationError(key, address, 'write "host:port" or "[IPv6 address]:port"')
    return name.strip("[]") or host, int(port)


class TcpRendezvous:
    """A store that rank 0 serves over TCP, and the others reach at the same host and port.

    Plain text and unauthenticated, as torch's TCPStore: set `HIVE_JOB_SECRET`, or configure certificates. An entry can
    be replaced only by the client that set it, and what is served is bounded in bytes, clients and time.

    Args:
        address: where rank 0 serves it, "host:port" ("[v6]:port"); port 0 lets the kernel choose (see `port`).
        serve: True on rank 0 alone.

    Raises:
        ConfigurationError: `address` is not of that form, or cannot be served here: another job may be.
    """

    def __init__(self, address: str, *, serve: bool) -> None:
        self.host, self.port = host_and_port("rendezvous", address, host="127.0.0.1", port_min=0 if serve else 1)
        self._reached = False
        self._pauses_s: dict[str, float] = {}
        self._warn_s: float | None = None
        self._refused_since_s: float | None = None
        self._token = os.urandom(TOKEN_BYTES)
        self._server: _Server | None = None
        if serve:
            try:
                self._server = _Server(self.host, self.port)
            except OSError as error:
                advice = {
                    errno.EADDRINUSE: "; take a port that is free, one for each job",
                    errno.EADDRNOTAVAIL: f"; no interface here has it: on rank 0 write 0.0.0.0:{self.port}",
                }.get(error.errno or 0, "")
                reason = f"it cannot be served: {error.strerror or error}{advice}"
                raise ConfigurationError("rendezvous", address, reason) from error
            self.port = self._server.port

    def set(self, key: str, value: bytes) -> None:
        _check(key, value)
        self._ask(b"S", key, value=value, timeout_s=SET_S, give_up_s=time.monotonic() + SET_S)

    def get(self, key: str, timeout_s: float) -> bytes:
        give_up_s = time.monotonic() + timeout_s
        while True:
            value = self._ask(b"G", key, value=b"", timeout_s=timeout_s, give_up_s=give_up_s)
            if value is not None:
                self._pauses_s.pop(key, None)
                return value
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                raise TimedOutError(f"rendezvous key {key}", timeout_s=timeout_s)
            pause_s = self._pauses_s.get(key, POLL_S)  # who waits long asks with many short timeouts
            self._pauses_s[key] = min(2 * pause_s, POLL_S_MAX)
            time.sleep(min(pause_s, left_s))

    def close(self) -> None:
        """Stop serving, where this rank serves. Call it when every rank is connected."""
        if self._server is not None:
            self._server.close()

    def _ask(self, verb: bytes, key: str, *, value: bytes, timeout_s: float, give_up_s: float) -> bytes | None:
        name = key.encode()
        while True:
            try:
                patience_s = min(max(give_up_s - time.monotonic(), 0.0) + 1.0, CLIENT_READ_S)
                with socket.create_connection((self.host, self.port), timeout=patience_s) as sock:
                    self._reached, self._refused_since_s = True, None
                    sock.sendall(_REQUEST.pack(verb, len(name), len(value), self._token) + name + value)
                    status, length = _ANSWER.unpack(_read_exactly(sock, _ANSWER.size))
                    if status == b"X":
                        where = f"the rendezvous at {self.host}:{self.port}"
                        raise TransportError(f"{where} refused {key}: another client has set it, or it is full")
                    if status != b"K":
                        return None
                    if length > VALUE_BYTES_MAX:
                        raise TransportError(f"the rendezvous at {self.host}:{self.port} answered {length} bytes")
                    return _read_exactly(sock, length)
            except OSError as error:
                if isinstance(error, ConnectionRefusedError):
                    self._check_not_gone()
                self._warn(error)
                if time.monotonic() >= give_up_s:
                    where = f"rendezvous at {self.host}:{self.port} ({error})"
                    raise TimedOutError(where, timeout_s=timeout_s) from error
                time.sleep(POLL_S * 5)

    def _warn(self, error: OSError) -> None:
        """Say once what is waited for, after `WARN_S`."""
        now_s = time.monotonic()
        self._warn_s = now_s + WARN_S if self._warn_s is None else self._warn_s
        if now_s >= self._warn_s:
            _log.warning("hive-qos: waiting for rank 0 at %s:%d: %s", self.host, self.port, error)
            self._warn_s = math.inf

    def _check_not_gone(self) -> None:
        """Nobody listens there (a host that does not answer is another matter). Before rank 0 starts that is usual."""
        now_s = time.monotonic()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        if self._reached and now_s - self._refused_since_s >= GONE_S:
            where = f"rendezvous at {self.host}:{self.port}"
            raise ConnectionLostError(where, "it was there and is not any more: rank 0, which served it, has ended")


class _Server:
    """Rank 0's side of `TcpRendezvous`: a thread that accepts, one a connection that answers."""

    def __init__(self, host: str, port: int) -> None:
        store = MemoryRendezvous()
        owners: dict[str, bytes] = {}
        setting = threading.Lock()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = descriptors == resource.RLIM_INFINITY
        places = threading.BoundedSemaphore(CLIENTS_MAX if unlimited else min(CLIENTS_MAX, max(descriptors // 2, 1)))

        def set_once(key: str, value: bytes, token: bytes) -> bool:
            with setting:
                if not hmac.compare_digest(owners.get(key, token), token):
                    return False
                try:
                    store.set(key, value)
                except MisuseError:  # full
                    return False
                owners[key] = token
                return True

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                sock: socket.socket = self.request
                give_up_s = time.monotonic() + CLIENT_READ_S
                with contextlib.suppress(OSError):  # a client that went away in the middle, or is slow
                    verb, name_bytes, size, token = _REQUEST.unpack(_read_exactly(sock, _REQUEST.size, give_up_s))
                    if name_bytes > KEY_BYTES_MAX:
                        return
                    key = _read_exactly(sock, name_bytes, give_up_s).decode(errors="replace")
                    if verb == b"S" and size <= VALUE_BYTES_MAX:
                        taken = set_once(key, _read_exactly(sock, size, give_up_s), token)
                        sock.sendall(_ANSWER.pack(b"K" if taken else b"X", 0))
                    elif verb == b"G":
                        try:
                            value = store.get(key, 0.0)
                        except TimedOutError:
                            sock.sendall(_ANSWER.pack(b"N", 0))
                        else:
                            sock.sendall(_ANSWER.pack(b"K", len(value)) + value)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            request_queue_size = 128

            def process_request(self, request: Any, client_address: Any) -> None:
                if not places.acquire(blocking=False):
                    self.shutdown_request(request)
                    return
                try:
                    super().process_request(request, client_address)
                except BaseException:  # no thread can be started
                    places.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    places.release()

        self._server = Server((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


def _read_exactly(sock: socket.socket, byte_count: int, give_up_s: float | None = None) -> bytes:
    parts = bytearray()
    while len(parts) < byte_count:
        if give_up_s is not None:
            sock.settimeout(max(give_up_s - time.monotonic(), 0.001))
        part = sock.recv(byte_count - len(parts))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts += part
    return bytes(parts)


def _check(key: str, value: bytes) -> None:
    if len(key.encode()) > KEY_BYTES_MAX:
        raise MisuseError(f"a rendezvous key has at most {KEY_BYTES_MAX} bytes")
    if len(value) > VALUE_BYTES_MAX:
        raise MisuseError(f"a rendezvous value has at most {VALUE_BYTES_MAX} bytes")
