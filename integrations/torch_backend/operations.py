"""A process group's operations: each starts in the order of the calls, and all of them end with the group.

Collectives match by order on all ranks. An operation whose input is still on a GPU holds back those after it
(`completion_threads.FirstInFirstOut`). A call that fails before it has begun gives up its place in that order.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

import transport
from hive_qos.errors import CancelledError, HiveError, MisuseError, TimedOutError
from integrations.torch_backend.completion_threads import CompletionThreads, FirstInFirstOut
from integrations.torch_backend.gpu import working_with
from integrations.torch_backend.options import GroupOptions
from integrations.torch_backend.staging import InPieces, Staged, finish_all, until_all_ready
from integrations.torch_backend.work import WAITING, HiveWork
from integrations.torch_backend.world import World, connected, group_name_of
from transport.collectives import calls

Tensors = Sequence[torch.Tensor]
Places = tuple[int, int | None]
StartMessage = Callable[[float], transport.Work]
"""Starts a message at the transport, given its timeout in seconds."""

_log = logging.getLogger("integrations.torch")
THREADS = CompletionThreads()
_DEFAULTS = GroupOptions()


@dataclass(frozen=True)
class Later:
    """Collectives that depend on what an earlier one brings. Where that fails, it fails on all, and none begins.

    Args:
        known: blocks until they are.
    """

    known: Callable[[], Sequence[calls.Call]]


class _Extension:
    """More time for the operations from now on, until the first of them has ended."""

    def __init__(self, extra_s: float) -> None:
        self.extra_s = extra_s
        self.first: HiveWork | None = None


class _Region(threading.local):
    """The works of a thread's coalescing region; None outside of one."""

    works: list[HiveWork] | None = None


class Operations:
    """One process group's operations.

    Args:
        world: the connections under it.
        group: its ranks at the transport, lent by `world`.
        timeout_s: default of an operation.
        options: what `pg_options` said.
    """

    def __init__(
        self, world: World, group: transport.Group, *, timeout_s: float, options: GroupOptions = _DEFAULTS
    ) -> None:
        self.world = world
        self.group = group
        self.timeout_s = timeout_s
        self.options = options
        self.abort_hooks: dict[int, Callable[[], None]] = {}
        self.sequence = 0
        self.on_close: list[Callable[[], None]] = []
        self._order, self._messages = FirstInFirstOut(THREADS), FirstInFirstOut(THREADS)
        self._running: set[HiveWork] = set()
        self._numbers = itertools.count(1)
        self._extensions: list[_Extension] = []
        self._region = _Region()
        self._error: BaseException | None = None
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

    def add_ephemeral_timeout(self, extra_s: float) -> None:
        """Give the operations from now on so much more time each, until the first of them has ended. Calls add up."""
        self._extensions.append(_Extension(extra_s))

    def start_coalescing(self) -> None:
        """From now on, gather this thread's operations for `end_coalescing`. They start at once nevertheless."""
        self._region.works = []

    def end_coalescing(self) -> HiveWork:
        """One Work that ends when all operations since `start_coalescing` have, with the first error among them."""
        works, self._region.works = self._region.works, None
        if works is None:
            raise MisuseError("end_coalescing without start_coalescing before it, on this thread")

        def raise_first_error() -> None:
            for one in works:
                if (error := one.exception()) is not None:
                    raise error

        tensors = [tensor for one in works for tensor in one.tensors]
        together = HiveWork(
            f"{len(works)} coalesced operations of group {self.group.name}",
            result=tensors,
            devices=_gpus_of(tensors),
            sequence=self.sequence,
            threads=THREADS,
            finish=raise_first_error,
        )
        together.follow([], also=works)
        return together

    # Lifecycle.

    def split(
        self, group_name: str, ranks: Sequence[int], *, timeout_s: float, options: GroupOptions | None = None
    ) -> Self:
        """Some of these ranks as a group of their own, over the same connections.

        Args:
            group_name: torch's; different from all others.
            ranks: this group's, in the new one's order; this rank is among them.
            timeout_s: default of its operations.
            options: None for this group's.
        """
        members = self.world.global_ranks(self.group, ranks)
        group = self.world.lend(group_name_of(group_name), members, timeout_s=timeout_s)
        return type(self)(self.world, group, timeout_s=timeout_s, options=options or self.options)

    def merged(self, store: Any, *, rank: int, size: int, group_name: str, timeout_s: float) -> Self:
        """The ranks of several groups as one, over connections of its own. Blocks until all have come.

        Args:
            store: torch's, which all of them reach.
            rank: in the new group.
            group_name: torch's, the same on all.
        """
        name, ranks = group_name_of(group_name), tuple(range(size))
        world = connected(store, rank=rank, ranks=ranks, name=name, timeout_s=timeout_s)
        return type(self)(
            world, world.lend(name, ranks, timeout_s=timeout_s), timeout_s=timeout_s, options=self.options
        )

    def shrink(self, ranks: Sequence[int], *, anew: bool) -> Self:
        """Those of these ranks that are left, over the same connections.

        Args:
            ranks: this group's that are left; this rank is among them.
            anew: torch numbers them from 0 from now on, because this is its default group.
        """
        if not anew:
            return self.split(f"{self.group.name}:shrunk:{list(ranks)}", ranks, timeout_s=self.timeout_s)
        world = self.world.shrunk(self.group, ranks, timeout_s=self.timeout_s)
        group = world.lend(world.group.name, world.ranks, timeout_s=self.timeout_s)
        return type(self)(world, group, timeout_s=self.timeout_s, options=self.options)

    def error_kind(self) -> str:
        """c10d's word for the last error that has ended an operation here."""
        kinds = ((TimedOutError, "TIMEOUT"), (CancelledError, "REMOTE_ERROR"))
        if self._error is None:
            return "SUCCESS"
        return next((kind for error, kind in kinds if isinstance(self._error, error)), "COMM_ERROR")

    def abort(self, reason: str) -> None:
        """End what is under way with `CancelledError`, here and on the others, and leave."""
        if self._closed.locked():
            return
        self._call_abort_hooks()
        self.group.abort(reason)
        self.close(timeout_s=1.0)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Leave the group; what is still under way ends with `CancelledError`. Idempotent."""
        if not self._closed.acquire(blocking=False):
            return
        try:
            self.world.give_back(self.group, timeout_s=timeout_s)
        finally:  # an interrupt, too: the port of the store is wanted by the next group
            for told in self.on_close:
                told()
            self.on_close.clear()

    def launch(
        self,
        what: str,
        staged: Sequence[Staged],
        start: Sequence[calls.Call] | Later | StartMessage,
        *,
        result: Tensors,
        timeout_s: float | None = None,
        also: Sequence[HiveWork] = (),
        priority: transport.Priority | None = None,
        finish: Callable[[], None] | None = None,
    ) -> HiveWork:
        """Start an operation behind those before it, a message behind the messages.

        Args:
            what: its name, for errors.
            staged: its tensors.
            start: the collectives of the transport that it is, which start together, or what starts a message. They
                start in order, perhaps on another thread.
            result: what the future gives.
            timeout_s: None for the group's.
            also: works that must have ended before this one ends.
            priority: of the collectives; None for the group's.
            finish: runs after success in place of bringing received values back to `staged`.
        """
        if os.getpid() != self.world.process:
            raise MisuseError(f"{what}: process group {self.group.name} is the parent's, not this forked child's")
        extensions = list(self._extensions)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        limit_s += sum(extension.extra_s for extension in extensions)
        collective = not callable(start)
        if self._closed.locked():
            raise MisuseError(f"{what}: process group {self.group.name} has been destroyed or aborted")
        if collective and not isinstance(start, Later):  # it has the number of the one that it depends on
            self.sequence = next(self._numbers)
        sequence = self.sequence
        if finish is None and not all(one.in_place for one in staged):
            finish = functools.partial(finish_all, staged)
        devices = _gpus_of([one.tensor for one in staged])
        work = HiveWork(
            f"{what} {sequence} of group {self.group.name}" if collective else f"{what} in group {self.group.name}",
            result=result,
            devices=devices,
            sequence=sequence,
            threads=THREADS,
            finish=finish,
        )
        if devices:
            self._have_wait(staged, work.what, limit_s)

        later = start if isinstance(start, Later) else None
        known = [] if callable(start) or isinstance(start, Later) else list(start)

        def begin() -> None:
            if callable(start):
                parts = [start(limit_s)]
            else:
                asked = self.options.priority if priority is None else priority
                default = transport.Priority.GRADIENT
                parts = self.group.start(known, timeout_s=limit_s, priority=default if asked is None else asked)
            work.follow(parts, also=also)

        def late() -> None:
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - nobody else hears of it on this thread, and the work must end
                closed = isinstance(error, MisuseError) and self._closed.locked()  # while the input was on its way
                work.fail(CancelledError(f"{work.what}: the process group was closed") if closed else error)
                return
            if pieces is not None:
                with working_with(devices):
                    pieces.follow()

        def failed(error: Exception) -> None:
            """Its input never became ready (a GPU failed, or a rank): our next one must not be taken for this one."""
            work.fail(error)
            with contextlib.suppress(MisuseError):  # as in `give_up`
                for _ in known:
                    self.group.give_up(f"{work.what}: its input could not be read: {error}")

        pending = [one for one in staged if one.pending]
        pieces = None
        if len(known) == len(pending) == 1 and pending[0].in_pieces:
            pieces = InPieces(pending[0])
            known = [replace(known[0], partial=pieces.partial)]

        def until_ready() -> None:
            with working_with(devices):
                if later is not None:
                    known.extend(later.known())
                elif pieces is not None:
                    pieces.begin()
                else:
                    until_all_ready(pending)

        order = self._order if collective else self._messages
        order.start(begin, until_ready=until_ready if pending or later else None, late=late, failed=failed)
        if collective:
            self._running.add(work)
        for extension in extensions:
            extension.first = extension.first or work
        if self._region.works is not None:
            self._region.works.append(work)
        work.tell(lambda: self._ended(work))
        if torch.autograd.profiler._is_profiler_enabled:
            work.show_in_profile(what)
        return work

    def _have_wait(self, staged: Sequence[Staged], what: str, limit_s: float) -> None:
        """Let tensors wait for their GPU for so long at most, and no longer than the group is open."""
        give_up_s = time.monotonic() + limit_s

        def check() -> None:
            if self._closed.locked():
                raise CancelledError(f"{what}: the process group was closed")
            if time.monotonic() > give_up_s:
                raise TimedOutError(f"{what}, {WAITING}", timeout_s=limit_s)

        for one in staged:
            one.check = check

    def _ended(self, work: HiveWork) -> None:
        self._running.discard(work)
        for extension in list(self._extensions):
            if extension.first is work:
                self._extensions.remove(extension)
        error = work.exception()
        if isinstance(error, HiveError) and not isinstance(error, MisuseError) and not self._closed.locked():
            self._error = error
            self._call_abort_hooks()

    def _call_abort_hooks(self) -> None:
        for hook in list(self.abort_hooks.values()):
            try:
                hook()
            except Exception:  # noqa: BLE001 - the hook's mistake; the operation's error is what counts
                _log.exception("an abort hook of group %s failed", self.group.name)


def _gpus_of(tensors: Tensors) -> tuple[torch.device, ...]:
    return tuple({tensor.device for tensor in tensors if tensor.device.type == "cuda"})
