"""torch's store as the transport's meeting place, and the address at which the other ranks can reach this one."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from hive_qos.errors import TimedOutError, TransportError
from transport.mesh.sockets import address_towards, outer_address
from transport.settings import Settings

POLL_S_MIN = 0.005
POLL_S_MAX = 0.1
"""A rank usually appears within milliseconds of the others; one that loads data first is not worth a busy store."""
SET_TIMEOUT_S = 60.0
"""For rank 0's reply, where a rank writes before it has read anything."""
TOKEN_BYTES = 16

LOOPBACK = "127.0.0.1"


class StoreRendezvous:
    """`transport.Rendezvous` over a torch store, under keys that no earlier run has used.

    The store may hold an earlier run's keys: torchrun keeps it when it restarts the ranks, and a process may connect
    twice. So rank 0 draws a new prefix. Each other rank requests it with a random token, and reads it under a key that
    contains the token: only a rank 0 that is there after the request can reply. Rank 0 replies to all tokens that it
    finds whenever it waits, so that a restarted rank has its reply too. A dead rank's token says nothing to rank 0.

    It asks whether a key is there and sleeps, rather than block in `store.get`: a blocked TCPStore client holds its one
    connection, and every other user of that store would wait with it.

    Args:
        store: any torch store; the process group's own prefix is in it already.

    Attributes:
        host: what the transport's first address is to lead to: our own one that leads to the others.

    Raises:
        TransportError: the store cannot be written.
    """

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        self._store = store
        self.host = own_address(store, world_size=world_size)
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._prefix = f"hive/{self._token.hex()}/" if rank == 0 else ""
        self._replied = dict.fromkeys(range(1, world_size) if rank == 0 else (), b"")
        if rank != 0:
            self._write(f"hive/request/{rank}", self._token)

    def set(self, key: str, value: bytes) -> None:
        self._write(self._name(key, SET_TIMEOUT_S), value)

    def get(self, key: str, timeout_s: float) -> bytes:
        give_up_s = time.monotonic() + timeout_s
        name = self._name(key, timeout_s)
        return self._read(name, max(give_up_s - time.monotonic(), 0.0))

    def _name(self, key: str, timeout_s: float) -> str:
        if not self._prefix:
            self._prefix = f"hive/{self._read(f'hive/reply/{self._token.hex()}', timeout_s).hex()}/"
        return self._prefix + key

    def _write(self, name: str, value: bytes) -> None:
        try:
            self._store.set(name, value)  # type: ignore[arg-type]  # bytes are fine, the stub says str
        except RuntimeError as error:
            raise TransportError(f"the rendezvous store cannot be written: {error}") from error

    def _read(self, name: str, timeout_s: float) -> bytes:
        give_up_s = time.monotonic() + timeout_s
        pause_s = POLL_S_MIN
        try:
            while not self._store.check([name]):
                left_s = give_up_s - time.monotonic()
                if left_s <= 0:
                    raise TimedOutError(f"rendezvous key {name}", timeout_s=timeout_s)
                self._reply()
                time.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, POLL_S_MAX)
            return bytes(self._store.get(name))
        except RuntimeError as error:
            raise TransportError(f"the rendezvous store cannot be read: {error}") from error

    def _reply(self) -> None:
        for rank, replied in self._replied.items():
            name = f"hive/request/{rank}"
            if self._store.check([name]) and (token := bytes(self._store.get(name))) != replied:
                self._write(f"hive/reply/{token.hex()}", self._token)
                self._replied[rank] = token


def own_address(store: Store, *, world_size: int | None, environment: Mapping[str, str] | None = None) -> str:
    """The literal address of this host that leads to the other ranks: the one from which it reaches the store.

    Where the store is at a loopback address although some ranks are on other hosts (Debian names a host's own name
    127.0.1.1), or where the store has no address (a file), it is the address of the default route, or of the first
    interface that is up. Only when there is nothing else, or all ranks are here, loopback.

    Args:
        store: the process group's store, perhaps behind prefixes.
        world_size: how many ranks there are; with torchrun's LOCAL_WORLD_SIZE it tells whether all are on this host.
            None: that changes, and ranks of other hosts may come, which need not use this store.
        environment: for MASTER_ADDR and LOCAL_WORLD_SIZE; None for the process' own.
    """
    values = os.environ if environment is None else environment
    base = _base(store)
    host = base.host if isinstance(base, TCPStore) else values.get("MASTER_ADDR", "")
    all_here = world_size is not None and _all_are_here(store, world_size=world_size, environment=values)
    if all_here and isinstance(base, HashStore):
        return LOOPBACK  # lives in this process' memory
    towards = address_towards(host) if host else ""
    if towards and (not ipaddress.ip_address(towards).is_loopback or all_here or not values.get("LOCAL_WORLD_SIZE")):
        return towards
    if all_here:
        return LOOPBACK
    return outer_address() or towards or LOOPBACK


def settings_for(store: Store, *, world_size: int) -> Settings:
    """Those of the environment. Ranks that are all on this host listen at one address of it, others at all."""
    settings = Settings.from_environment()
    if settings.listen or settings.interface or not _all_are_here(store, world_size=world_size, environment=os.environ):
        return settings
    return replace(settings, listen=own_address(store, world_size=world_size))


def _all_are_here(store: Store, *, world_size: int, environment: Mapping[str, str]) -> bool:
    """Whether that is known: by torchrun, which says how many ranks the job has and how many this host, or by a store
    in this process."""
    local, job = (_number(environment.get(name, "")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    return isinstance(_base(store), HashStore) or local >= max(world_size, job)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _base(store: Store) -> Any:
    """Behind prefixes."""
    base: Any = store
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    return base
