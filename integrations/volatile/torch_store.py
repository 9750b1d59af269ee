"""torch's store as the register of a volatile group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._C._distributed_c10d import Store

from hive_qos.errors import RegisterLostError
from transport.settings import Settings
from transport.volatile.register.register import Register

T = TypeVar("T")


class TorchStore:
    """`transport.volatile.register.register.Store` over a torch store.

    `TCPStore` serves members of several hosts. It lives in one process: where that ends, nobody can change the view
    any more, and the members say so. Start it apart from them, as `torchrun` does.

    Args:
        store: a TCPStore, a FileStore, or a PrefixStore over one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> bytes | None:
        return _reached(f"reading {key}", lambda: bytes(self._store.get(key)) if self._store.check([key]) else None)

    def set(self, key: str, value: bytes) -> None:
        _reached(f"writing {key}", lambda: self._store.set(key, value))  # type: ignore[arg-type]  # the stub says str

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        def ask() -> bytes:
            return bytes(self._store.compare_set(key, expected, value))  # type: ignore[arg-type]  # the stub says str

        return _reached(f"replacing {key}", ask)

    def add(self, key: str, amount: int) -> int:
        return _reached(f"counting {key}", lambda: int(self._store.add(key, amount)))


def _reached(what: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except RuntimeError as error:
        raise RegisterLostError(what, f"torch's store does not answer: {error}") from error


def torch_register(store: Store, *, settings: Settings | None = None) -> Register:
    """The register of the job `HIVE_JOB` in a torch store; `HIVE_JOB_SECRET` authenticates what stands there."""
    settings = settings or Settings.from_environment()
    return Register(TorchStore(store), job=settings.job, secret=settings.job_secret)
