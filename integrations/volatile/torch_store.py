"""torch's store as the register of a volatile group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from torch._C._distributed_c10d import Store

from hive_qos.errors import RegisterLostError
from transport.settings import Settings
from transport.volatile.register.register import Register

T = TypeVar("T")

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
        self._store = store
        self._is_stale = False

    def get(self, key: str) -> bytes | None:
        return self._ask(f"reading {key}", lambda store: bytes(store.get(key)) if store.check([key]) else None)

    def set(self, key: str, value: bytes) -> None:
        self._ask(f"writing {key}", lambda store: store.set(key, value))  # type: ignore[arg-type]  # the stub says str

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        def ask(store: Store) -> bytes:
            return bytes(store.compare_set(key, expected, value))  # type: ignore[arg-type]  # the stub says str

        return self._ask(f"replacing {key}", ask)

    def add(self, key: str, amount: int) -> int:
        return self._ask(f"counting {key}", lambda store: int(store.add(key, amount)))

    def renew(self) -> bool:
        """The next call connects anew: the other end of this connection may be gone without a word."""
        self._is_stale = True
        return True

    def _ask(self, what: str, ask: Callable[[Store], T]) -> T:
        try:
            try:
                if self._is_stale:
                    self._is_stale = False
                    self._store = self._store.clone()
                return ask(self._store)
            except RuntimeError as error:
                _log.info("%s: torch's store is connected anew: %s", what, error)
                self._store = self._store.clone()
                return ask(self._store)
        except RuntimeError as error:
            raise RegisterLostError(what, f"torch's store does not answer: {error}") from error


def torch_register(store: Store, *, settings: Settings | None = None) -> Register:
    """The register of the job `HIVE_JOB` in a torch store; `HIVE_JOB_SECRET` authenticates what stands there."""
    settings = settings or Settings.from_environment()
    return Register(TorchStore(store), job=settings.job, secret=settings.job_secret)
