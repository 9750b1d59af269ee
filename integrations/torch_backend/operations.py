"""A process group's operations: each starts in the order of the calls, and all of them end with the group.

Collectives match by order on all ranks. An operation whose input is still on a GPU holds back those after it
(`completion_threads.FirstInFirstOut`). A call that fails before it has begun gives up its place in that order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence

import torch

import transport
from hive_qos.errors import MisuseError
from integrations.torch_backend.completion_threads import CompletionThreads, FirstInFirstOut
from integrations.torch_backend.staging import Staged, finish_all, until_all_ready
from integrations.torch_backend.work import HiveWork
from integrations.torch_backend.world import World
from transport.collectives import calls

Tensors = Sequence[torch.Tensor]
Places = tuple[int, int | None]
StartMessage = Callable[[float], transport.Work]
"""Starts a message at the transport, given its timeout in seconds."""

_threads = CompletionThreads()


class Operations:
    """One process group's operations.

    Args:
        world: the connections under it.
        group: its ranks at the transport, lent by `world`.
        timeout_s: default of an operation.
    """

    def __init__(self, world: World, group: transport.Group, *, timeout_s: float) -> None:
        self.world = world
        self.group = group
        self.timeout_s = timeout_s
        self.sequence = 0
        self.on_close: list[Callable[[], None]] = []
        self._order = FirstInFirstOut(_threads)
        self._running: set[HiveWork] = set()
        self._numbers = itertools.count(1)
        self._monitored_barriers = itertools.count(1)
        self._closed = threading.Lock()  # never waited for: taken once, by whoever closes first

    def next_monitored_barrier(self) -> int:
        """Number of the next monitored barrier, from 1."""
        return next(self._monitored_barriers)

    def places(self) -> Places:
        """How many places among the group's collectives are taken: those that had to queue, and the transport's number
        where none is queued and it moves by a call alone."""
        return self._order.queued, None if self._order.waiting else self.group.next_number

    def give_up(self, what: str, error: Exception, *, since: Places | None, count: int = 1) -> None:
        """Tell the others, in this call's place among the group's, that this rank cannot begin it.

        Nothing is told where the call has its place, and a signal's handler raised after that: it runs, or the
        transport has told the others. A second place would set all later calls against the wrong ones of the others.

        Args:
            what: the collective's name.
            error: why.
            since: `places` when the call began; None where it did not come so far.
            count: how many collectives of the transport it is.
        """
        if self._closed.locked() or os.getpid() != self.world.process:
            return
        if since is not None:
            queued, number = since
            if self._order.queued != queued or number not in (None, self.group.next_number):
                return
        self.sequence = next(self._numbers)

        def tell() -> None:
            with contextlib.suppress(MisuseError):  # the transport is closed, which the others know
                for _ in range(count):
                    self.group.give_up(f"{what}: {error}")

        self._order.start(tell, until_ready=None, late=tell, failed=lambda _error: None)

    # Lifecycle.

    def abort(self, reason: str) -> None:
        """End what is under way with `CancelledError`, here and on the others, and leave."""
        if self._closed.locked():
            return
        self.group.abort(reason)
        self.close(timeout_s=1.0)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Leave the group; what is still under way ends with `CancelledError`. Idempotent."""
        if not self._closed.acquire(blocking=False):
            return
        self.world.give_back(self.group, timeout_s=timeout_s)
        for told in self.on_close:
            told()
        self.on_close.clear()

    def launch(
        self,
        what: str,
        staged: Sequence[Staged],
        start: Sequence[calls.Call] | StartMessage,
        *,
        result: Tensors,
        timeout_s: float | None = None,
        also: Sequence[HiveWork] = (),
        priority: transport.Priority = transport.Priority.GRADIENT,
        finish: Callable[[], None] | None = None,
    ) -> HiveWork:
        """Start an operation behind those before it.

        Args:
            what: its name, for errors.
            staged: its tensors.
            start: the collectives of the transport that it is, which start together, or what starts a message. They
                start in order, perhaps on another thread.
            result: what the future gives.
            timeout_s: None for the group's.
            also: works that must have ended before this one ends.
            priority: of the collectives.
            finish: runs after success in place of bringing received values back to `staged`.
        """
        if os.getpid() != self.world.process:
            raise MisuseError(f"{what}: process group {self.group.name} is the parent's, not this forked child's")
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        collective = not callable(start)
        if self._closed.locked():
            raise MisuseError(f"{what}: process group {self.group.name} has been destroyed")
        if collective:
            self.sequence = next(self._numbers)
        sequence = self.sequence
        work = HiveWork(
            f"{what} {sequence} of group {self.group.name}",
            result=result,
            devices=tuple({one.tensor.device for one in staged if one.tensor.device.type == "cuda"}),
            sequence=sequence,
            threads=_threads,
            finish=finish or (lambda: finish_all(staged)),
        )

        def begin() -> None:
            if callable(start):
                parts = [start(limit_s)]
            else:
                parts = self.group.start(start, timeout_s=limit_s, priority=priority)
            work.follow(parts, also=also)

        def late() -> None:
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - nobody else hears of it on this thread, and the work must end
                work.fail(error)

        def failed(error: Exception) -> None:
            """Its input never became ready (the GPU failed): our next operation must not be taken for this one."""
            work.fail(error)
            for _ in () if callable(start) else start:
                self.group.give_up(f"{work.what}: its input could not be read: {error}")

        pending = any(one.pending for one in staged)
        until_ready = (lambda: until_all_ready(staged)) if pending else None
        self._order.start(begin, until_ready=until_ready, late=late, failed=failed)
        if collective:
            self._running.add(work)
            work.tell(lambda: self._running.discard(work))
        return work
