"""torch's store as the register of a volatile group."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from torch._C._distributed_c10d import Store, TCPStore

from hive_qos.errors import ConfigurationError, MisuseError, RegisterLostError
from transport.bootstrap.rendezvous import host_and_port
from transport.settings import Settings
from transport.volatile.register.register import STORE_S, Register

T = TypeVar("T")

_NOTHING = secrets.token_hex(16)
"""Stands for no value: a key that is not there is not set where another value than none is expected."""
CONNECT_S = 1.0
"""To connect to a store that is not there yet, and between two tries."""

_log = logging.getLogger("transport.volatile")


class TorchStore:
    """`transport.volatile.register.register.Store` over a torch store.

    `TCPStore` serves members of several hosts. It lives in one process: where that ends, nobody can change the view
    any more, and the members say so. Start it apart from them, as `torchrun` does. A client of it does not connect
    again after its connection broke, as on a machine that slept: it is replaced by a clone, which is asked once more.

    Args:
        store: a TCPStore, a FileStore, or a PrefixStore over one.
    """

    def __init__(self, store: Store) -> None:
        self._store = self._asked = store
        self._given = store  # it may serve others, too, for as long as it is kept
        self._stale: Store | None = None

    def get(self, key: str) -> bytes | None:
        # A store's own `get` waits for a key that is not there, and `check` before it takes a second round trip.
        held = self._ask(f"reading {key}", lambda store: bytes(store.compare_set(key, _NOTHING, _NOTHING)))
        return None if held == _NOTHING.encode() else held

    def set(self, key: str, value: bytes) -> None:
        self._ask(f"writing {key}", lambda store: store.set(key, value))  # type: ignore[arg-type]  # the stub says str

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        def ask(store: Store) -> bytes:
            return bytes(store.compare_set(key, expected, value))  # type: ignore[arg-type]  # the stub says str

        return self._ask(f"replacing {key}", ask)

    def add(self, key: str, amount: int) -> int:
        return self._ask(f"counting {key}", lambda store: int(store.add(key, amount)))

    def renew(self) -> bool:
        """The next call connects anew: the other end of this connection may be gone without a word.

        A connection that took longer to make than a call may is not meant: the next call has it.
        """
        self._stale = self._asked
        return True

    def _ask(self, what: str, ask: Callable[[Store], T]) -> T:
        try:
            try:
                if self._store is self._stale:
                    self._store = self._store.clone()
                else:
                    self._asked = self._store
                return ask(self._store)
            except RuntimeError as error:
                _log.info("%s: torch's store is connected anew: %s", what, _first_line(error))
                self._store = self._store.clone()
                return ask(self._store)
        except RuntimeError as error:
            raise RegisterLostError(what, f"torch's store does not answer: {_first_line(error)}") from error


def torch_register(store: Store | str, *, settings: Settings | None = None) -> Register:
    """The register of the job `HIVE_JOB` in a torch store; `HIVE_JOB_SECRET` authenticates what stands there.

    Args:
        store: as of `TorchStore`, or "host:port" of a TCPStore: it is waited for until it is there.

    Raises:
        ConfigurationError: that is no address of a store, or the host has no address.
    """
    settings = settings or Settings.from_environment()
    if isinstance(store, str):
        store = _client(*host_and_port("register", store))
    if not isinstance(store, Store):
        raise MisuseError(f'a register is made of a torch store or of its "host:port", not of {store!r:.80}')
    return Register(TorchStore(store), job=settings.job, secret=settings.job_secret)


def serve_register(address: str) -> TCPStore:
    """Be the store at "host:port" for as long as what this returns is kept. torch's listens on all addresses.

    Raises:
        ConfigurationError: that is no address of this host, or its port is taken.
    """
    host, port = host_and_port("register", address)
    try:
        with socket.create_server((host, 0), family=socket.getaddrinfo(host, None)[0][0]):
            pass  # torch would wait for a store at another host's address without a word
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    except OSError as error:
        reason = f"it cannot be served: {host} is no address of this host; write 0.0.0.0:{port}"
        raise ConfigurationError("register", address, reason) from error
    except RuntimeError as error:
        raise ConfigurationError("register", address, f"it cannot be served: {_first_line(error)}") from error


def _client(host: str, port: int) -> TCPStore:
    """torch tries as well, but says nothing meanwhile, and no signal ends it."""
    said = False
    while True:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_S):
                pass
            return _connected(host, port)
        except socket.gaierror as error:
            raise ConfigurationError("register", f"{host}:{port}", f"{error.strerror}: {host}") from error
        except (OSError, RuntimeError) as error:
            if not said:
                _log.warning("waiting for the register at %s:%d: %s", host, port, _first_line(error))
            said = True
            time.sleep(CONNECT_S)


def _connected(host: str, port: int) -> TCPStore:
    """Connect in a thread: torch waits for ever where something else listens, or where a store is stopped."""
    made: Future[TCPStore] = Future()

    def connect() -> None:
        try:
            made.set_result(TCPStore(host, port, is_master=False))
        except RuntimeError as error:
            made.set_exception(error)

    threading.Thread(target=connect, name="hive-register", daemon=True).start()
    wait({made}, timeout=STORE_S)
    if not made.done():
        reason = "it does not answer; look whether it is a torch store that listens there"
        _log.warning("waiting for the register at %s:%d: %s", host, port, reason)
    return made.result()


def _first_line(error: Exception) -> str:
    """torch appends where in C++ it was raised."""
    return str(error).partition("\n")[0].partition("Exception raised from")[0]
