"""A process group whose ranks change: torch 2.15's `init_process_group(enable_reconfigure=True)`.

Such a group begins without connections. Each process gives a handle, the job's own logic exchanges them, and whoever
calls `reconfigure` with the same list forms the group anew, ranks in the list's order. Every time there are new
sockets, certificates, connections and numbers: nothing of the former ranks' operations can meet the new ones'.

    unconnected  --begin-->  connecting  --all are there-->  connected  --begin-->  connecting
                                         --it fails-->  unconnected     --abort-->  unconnected
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import transport
from hive_qos.errors import CancelledError, MisuseError
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.operations import THREADS
from integrations.torch_backend.options import GroupOptions
from integrations.torch_backend.store_rendezvous import own_address
from integrations.torch_backend.work import HiveWork
from integrations.torch_backend.world import adopt, retire


@dataclasses.dataclass(frozen=True)
class _Place:
    rank: int
    size: int


class _Unconnected:
    """Stands where a connected group has its `Collectives`: every operation is an error that says what to do."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        timeout_s: float,
        options: GroupOptions,
        abort_hooks: dict[int, Callable[[], None]],
        why: str,
    ) -> None:
        self.group = _Place(rank, size)
        self.timeout_s = timeout_s
        self.options = options
        self.abort_hooks = abort_hooks
        self.sequence = 0
        self.on_close: list[Callable[[], None]] = []
        self.why = why

    def error_kind(self) -> str:
        return "SUCCESS"

    def abort(self, reason: str) -> None:
        self.close()

    def close(self) -> None:
        while self.on_close:
            self.on_close.pop()()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MisuseError(f"the process group is not connected: {self.why}")


class Reconfiguration:
    """The ranks of one process group, from one `reconfigure` to the next.

    Args:
        store: the group's; it tells by which address the others reach this process, and nothing is written to it.
        rank, size: what the group says of itself until it is connected.
        timeout_s: default of an operation, and of connecting.
        options: what `pg_options` said.

    Attributes:
        collectives: the group's now.
        on_change: called with those that the group uses from then on, when it is connected or loses its connections.
    """

    def __init__(self, store: Any, *, rank: int, size: int, timeout_s: float, options: GroupOptions) -> None:
        self._store = store
        self._lock = threading.RLock()  # a signal's handler may abort or destroy the group
        self._process = os.getpid()
        self._closed = False
        self._listener: transport.Listener | None = None
        self._connecting: transport.Listener | None = None
        self._uuids: set[int] = set()  # a number for each time that the group was formed
        why = "exchange what get_reconfigure_handle() gives, and call reconfigure()"
        first = _Unconnected(rank=rank, size=size, timeout_s=timeout_s, options=options, abort_hooks={}, why=why)
        self.collectives = cast(Collectives, first)
        self.on_change: Callable[[Collectives], None] = lambda _collectives: None

    def handle(self) -> str:
        """What the others need to reach this process and to know it again: the same until it is used.

        Raises:
            ConfigurationError: a setting cannot work, or the address cannot be bound.
            MisuseError: the group was destroyed.
        """
        with self._lock:
            self._check_open()
            if self._listener is None:
                self._listener = transport.Listener(hint=own_address(self._store, world_size=None))
            return self._listener.handle

    def begin(self, uuid: int, handles: Sequence[str], *, timeout_s: float | None = None) -> HiveWork:
        """Leave the former ranks, and connect to exactly those of these handles. What is under way here ends.

        A call while an earlier one still connects takes its place.

        Args:
            uuid: differs each time.
            handles: one of each rank, this one's too, in rank order; the same list on all of them.
            timeout_s: for connecting, once the former connections are closed, which a rank that is lost but not yet
                known to be may hold up for 5 s. None for the group's.

        Returns:
            A Work that ends when all are connected, or with `TimedOutError`, which names who did not come,
            `PeerError` (a rank refused us) or `CancelledError`. After an error the group has no ranks.

        Raises:
            MisuseError, PeerError: the arguments cannot work (`Listener.check`). The group goes on as it was.
        """
        with self._lock:
            self._check_open()
            listener, former = self._listener, self.collectives
            if uuid in self._uuids:
                raise MisuseError(f"reconfigure: uuid {uuid} was already used in this group: take a new one each time")
            if listener is None:
                raise MisuseError(
                    "reconfigure: this process has given no handle since its last attempt: each is good for one, so"
                    " get_reconfigure_handle() has to be called and exchanged before the next"
                )
            listener.check(handles)
            self._uuids.add(uuid)
            self._listener = None
            self._stop_connecting("a later reconfigure has begun")
            self._connecting = listener
            waiting = _Unconnected(
                rank=former.group.rank,
                size=former.group.size,
                timeout_s=former.timeout_s,
                options=former.options,
                abort_hooks=former.abort_hooks,
                why="it is being reconfigured; wait for the Work of that",
            )
            self._change(cast(Collectives, waiting))
        limit_s = former.timeout_s if timeout_s is None else timeout_s
        work = HiveWork(
            f"reconfigure {uuid} to {len(handles)} ranks",
            result=[],
            sequence=0,
            threads=THREADS,
            before="connecting",
            finish=functools.partial(self._connect, uuid, listener, list(handles), former, waiting, limit_s),
        )
        work.follow([])
        return work

    def cancel(self, reason: str) -> None:
        """End an attempt to connect."""
        with self._lock:
            self._stop_connecting(reason)

    def close(self) -> None:
        """Give back what this holds, but for the group's connections. Idempotent."""
        with self._lock:
            self._closed = True
            self._stop_connecting("the process group was destroyed")
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _connect(
        self,
        uuid: int,
        listener: transport.Listener,
        handles: list[str],
        former: Collectives,
        waiting: _Unconnected,
        timeout_s: float,
    ) -> None:
        """On a thread of its own."""
        try:
            if isinstance(former, Collectives):
                retire(former.world)
            former.close()
            name = f"reconfigured {uuid}"
            group = listener.connect(handles, name=name, timeout_s=waiting.timeout_s, connect_timeout_s=timeout_s)
            with self._lock:
                if self._connecting is listener:
                    world = adopt(group)
                    lent = world.lend(name, world.ranks, timeout_s=waiting.timeout_s)
                    collectives = Collectives(world, lent, timeout_s=waiting.timeout_s, options=waiting.options)
                    collectives.abort_hooks = waiting.abort_hooks
                    self._connecting = None
                    self._change(collectives)
                    return
            group.close()
            raise CancelledError(f"connecting: {waiting.why}")
        except Exception as error:
            with self._lock:
                if self._connecting is listener:
                    self._connecting = None
                    waiting.why = f"its last reconfigure failed ({error}); exchange new handles and call it again"
            raise

    def _stop_connecting(self, reason: str) -> None:
        """With the lock."""
        if self._connecting is not None:
            self._connecting.close(reason)
            self._connecting = None
            cast(_Unconnected, self.collectives).why = reason

    def _change(self, collectives: Collectives) -> None:
        """With the lock."""
        self.collectives = collectives
        self.on_change(collectives)

    def _check_open(self) -> None:
        if self._closed:
            raise MisuseError("the process group has been destroyed")
        if os.getpid() != self._process:
            raise MisuseError("the process group is the parent's, not this forked child's")
