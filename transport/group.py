"""Ranks that move tensors between each other: connect once, then call collectives from any thread.

Every method that moves data returns a `Work` at once. Block with `group.allreduce(x).wait()`, or `await
group.allreduce(x)` in asyncio. All ranks of a group call the same operations in the same order; several may be under
way at once, in one group or in several. Tensors are numpy arrays, torch tensors on the CPU, anything with the buffer
protocol or DLPack, or a `TensorView`.

An operation in which a rank is missed raises `ConnectionLostError` with that rank on every other rank, within ten
seconds; later operations of a group with a lost rank raise it at once. Every operation has a timeout.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from hive_qos.errors import MisuseError
from transport.arguments import check_rank, check_seconds, is_index
from transport.bootstrap.rendezvous import Rendezvous
from transport.collectives import calls
from transport.collectives.codecs import Codec
from transport.collectives.error_feedback import ErrorFeedback
from transport.collectives.membership import check_group_name
from transport.collectives.reduce_op import ReduceOp
from transport.engine.base import Priority
from transport.inspection import jobs
from transport.work import Work

if TYPE_CHECKING:
    from transport.runtime import Runtime
    from transport.settings import Settings

TIMEOUT_S = 300.0
"""Default of an operation. Long enough for a straggler's checkpoint, short enough that a night is not lost."""


class Group:
    """A set of ranks, 0 to size - 1. Made by `Group.connect` or `subgroup`; a context manager, sync and async."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        ranks: tuple[int, ...],
        timeout_s: float,
        parent: bool,
        algorithm: str | None = None,
        compression: str = "",
    ) -> None:
        self._codec = Codec.named(compression)
        self._kept = ErrorFeedback()
        self._runtime = runtime
        self._ranks = ranks
        self._owns_runtime = parent
        self._subgroups: dict[tuple[int, ...], int] = {}
        self.name = name
        self.timeout_s = timeout_s
        runtime.add_group(name, ranks, algorithm=algorithm)

    @classmethod
    def connect(
        cls,
        rendezvous: Rendezvous,
        *,
        rank: int,
        world_size: int,
        name: str = "default",
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = 60.0,
        settings: Settings | None = None,
        compression: str = "",
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Group:
        """Publish where this rank listens, find the others, and connect to all of them.

        Args:
            rendezvous: a store that all ranks reach.
            rank: this rank, 0 to world_size - 1.
            world_size: how many ranks there are, at least 1.
            name: the group's name, the same on every rank and unique in the job; at most 96 bytes.
            timeout_s: default timeout of its operations.
            connect_timeout_s: by then every rank must be there.
            settings: addresses, engine and identity; None reads the `HIVE_*` environment.
            compression: of its reductions, see `allreduce`: "bfloat16", "int8", "int4", or "" for none.
            is_cancelled: asked every half second; then it raises `CancelledError`, or closes what is connected by then.
                The others are told once they may have read of this rank.

        Raises:
            ConfigurationError: a setting cannot work.
            TimedOutError: a rank did not appear; the text names it.
            PeerError: a rank's certificate or its rendezvous entry is not good, or it gave up connecting and said why.
            ConnectionLostError: rank 0 has ended, and the rendezvous that it served with it.
        """
        from transport.runtime import Runtime

        Codec.named(compression)  # before anybody waits for us
        check_group_name(name)
        if not hasattr(rendezvous, "set"):
            raise MisuseError(
                f"rendezvous is {rendezvous!r:.80}: make a TcpRendezvous or a FileRendezvous of an address"
            )
        check_seconds("timeout_s", timeout_s)
        check_seconds("connect_timeout_s", connect_timeout_s)
        runtime = Runtime.connect(
            rendezvous,
            rank=rank,
            world_size=world_size,
            name=name,
            timeout_s=connect_timeout_s,
            settings=settings,
            is_cancelled=is_cancelled,
        )
        group = cls(
            runtime,
            name=name,
            ranks=tuple(range(world_size)),
            timeout_s=timeout_s,
            parent=True,
            compression=compression,
        )
        if is_cancelled():
            group.close()
        return group

    @classmethod
    async def connect_async(
        cls,
        rendezvous: Rendezvous,
        *,
        rank: int,
        world_size: int,
        name: str = "default",
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = 60.0,
        settings: Settings | None = None,
        compression: str = "",
    ) -> Group:
        """`connect`, without blocking the event loop: `async with await Group.connect_async(...) as group`.

        Cancelled, it ends within seconds. Who may have read of this attempt is told that it was given up; where nobody
        could, this rank may connect again.
        """
        is_cancelled = threading.Event()
        connecting = asyncio.ensure_future(
            asyncio.to_thread(
                cls.connect,
                rendezvous,
                rank=rank,
                world_size=world_size,
                name=name,
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
                settings=settings,
                compression=compression,
                is_cancelled=is_cancelled.is_set,
            )
        )
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            is_cancelled.set()
            await asyncio.wait([connecting])
            if connecting.exception() is None:
                await asyncio.to_thread(connecting.result().close)
            raise

    @property
    def rank(self) -> int:
        """This process' rank in this group."""
        return self._ranks.index(self._runtime.rank)

    @property
    def size(self) -> int:
        """How many ranks this group has."""
        return len(self._ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks in the group that was connected, in this group's rank order."""
        return self._ranks

    def subgroup(
        self,
        ranks: Sequence[int],
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        algorithm: str | None = None,
        compression: str = "",
    ) -> Group:
        """A group of some of this group's ranks, over the same connections. Nothing is sent; members alone call it.

        Args:
            ranks: ranks of this group, without repetition, in the new group's rank order; this rank is one of them.
            name: unique in the job and the same on every member; None: made of the ranks, and a count of earlier
                subgroups of the same ranks.
            algorithm: of its collectives, as `HIVE_ALGORITHM`, the same on every member; None: what the settings say.
            compression: as `connect`; not the parent's.

        Raises:
            ConfigurationError: there is no such algorithm.
            MisuseError: this rank is not a member, a rank is not in this group, or the name is taken.
        """
        members = tuple(self._ranks[rank] for rank in ranks if is_index(rank, self.size))
        if len(set(members)) != len(ranks) or not members:
            raise MisuseError(f"a subgroup needs distinct ranks below {self.size}, not {list(ranks)}")
        if self._runtime.rank not in members:
            raise MisuseError(f"rank {self.rank} asked for a subgroup that it is not in: {list(ranks)}")
        if name is None:
            count = self._subgroups[members] = self._subgroups.get(members, 0) + 1
            name = calls.subgroup_name(self.name, members, count)
        return Group(
            self._runtime,
            name=name,
            ranks=members,
            timeout_s=self._timeout_s(timeout_s),
            parent=False,
            algorithm=algorithm,
            compression=compression,
        )

    # Collectives. `timeout_s` None means the group's; `priority` orders streams to one peer.

    def allreduce(
        self,
        tensor: object,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
        compression: str | None = None,
        feedback: Hashable = None,
    ) -> Work:
        """Reduce every rank's `tensor` into it, in place: afterwards all ranks hold the same bits.

        Values are taken in rank order; 16-bit floats accumulate in float32. Numerics: docs/reference/transport.md.

        Args:
            compression: of what is sent, the same on every rank: "bfloat16", "int8", "int4", "" for none; None: the
                group's. It counts for sums and means of float32 of more than 32 KiB; all others are sent as they are.
            feedback: what the tensor is called each time, such as its number in a training step: what compression has
                left out is added the next time. None: it is lost.

        Raises:
            MisuseError: there is no such compression, or the tensor cannot be reduced so.
        """
        call = calls.allreduce(self.site, tensor, op, self.compression(compression, feedback))
        return self._start(call, timeout_s, priority)

    def compression(self, compression: str | None = None, feedback: Hashable = None) -> calls.Compression:
        """For the reductions of `transport.collectives.calls`; arguments and errors as `allreduce`."""
        codec = self._codec if compression is None else Codec.named(compression)
        return calls.Compression(codec, self._kept, feedback)

    def share_feedback(self, other: Group) -> None:
        """Keep what compression leaves out together with another group, which reduces the same tensors in turn."""
        self._kept = other._kept

    def broadcast(
        self, tensor: object, root: int, *, timeout_s: float | None = None, priority: Priority = Priority.GRADIENT
    ) -> Work:
        """Copy the root's `tensor` into that of every other rank."""
        return self._start(calls.broadcast(self.site, tensor, root), timeout_s, priority)

    def reduce(
        self,
        tensor: object,
        root: int,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
        compression: str | None = None,
        feedback: Hashable = None,
    ) -> Work:
        """Reduce every rank's `tensor` into the root's, in place there; the others' stay as they are.

        Compression and feedback as in `allreduce`.
        """
        call = calls.reduce(self.site, tensor, root, op, self.compression(compression, feedback))
        return self._start(call, timeout_s, priority)

    def all_gather(
        self,
        outputs: object | Sequence[object],
        tensor: object,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
        compression: str = "",
    ) -> Work:
        """Collect every rank's `tensor` on all ranks.

        Args:
            outputs: a list of `size` tensors like `tensor`, or one tensor `size` times as large, filled in rank order.
            compression: as in `allreduce`, but not the group's: values that nobody adds to are rounded for good. All
                ranks get the same bits, the sender too.
        """
        call = calls.all_gather(self.site, outputs, tensor, self.compression(compression))
        return self._start(call, timeout_s, priority)

    def reduce_scatter(
        self,
        output: object,
        inputs: object | Sequence[object],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
        compression: str | None = None,
        feedback: Hashable = None,
    ) -> Work:
        """Reduce the ranks' `inputs[i]` into the `output` of rank i. Compression and feedback as in `allreduce`.

        Args:
            inputs: a list of `size` tensors, or one tensor that is `size` times as large as `output`. Inputs may
                differ in size from rank to rank of the list; `output` is like `inputs[rank]`.
        """
        call = calls.reduce_scatter(self.site, output, inputs, op, self.compression(compression, feedback))
        return self._start(call, timeout_s, priority)

    def gather(
        self,
        outputs: object | Sequence[object] | None,
        tensor: object,
        root: int,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
    ) -> Work:
        """Collect every rank's `tensor` on the root; `outputs` as in `all_gather` there, None elsewhere."""
        return self._start(calls.gather(self.site, outputs, tensor, root), timeout_s, priority)

    def scatter(
        self,
        output: object,
        inputs: object | Sequence[object] | None,
        root: int,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
    ) -> Work:
        """Hand the root's `inputs[i]` to the `output` of rank i; `inputs` is None elsewhere."""
        return self._start(calls.scatter(self.site, output, inputs, root), timeout_s, priority)

    def all_to_all(
        self,
        outputs: Sequence[object],
        inputs: Sequence[object],
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.GRADIENT,
    ) -> Work:
        """Send `inputs[i]` to rank i and receive `outputs[j]` from rank j. Sizes may differ, and may be zero.

        For one flat tensor with split sizes, pass its contiguous slices (`tensor.split(sizes)`).
        """
        return self._start(calls.all_to_all(self.site, outputs, inputs), timeout_s, priority)

    def barrier(self, *, timeout_s: float | None = None) -> Work:
        """Done when every rank has called it."""
        return self._start(calls.barrier(self.site), timeout_s, Priority.CONTROL)

    # Point to point.

    def send(
        self,
        tensor: object,
        peer: int,
        tag: int = 0,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.ACTIVATION,
    ) -> Work:
        """Send `tensor` to rank `peer`, which takes it with `recv`; messages of one tag stay in order.

        Args:
            tag: 0 to 2**40 - 1; keeps messages of different purposes apart.
            priority: `BULK` goes over a connection of its own that yields to everything else.
        """
        timeout_s = self._timeout_s(timeout_s)
        return self._runtime.send(
            self.name, self._peer(peer), tag, tensor, timeout_s=timeout_s, priority=_checked(priority)
        )

    def recv(self, into: object | None, peer: int | None, tag: int = 0, *, timeout_s: float | None = None) -> Work:
        """Take the next message with this tag from rank `peer` (None: from whichever rank's comes first).

        Args:
            into: a writable tensor that the message must fill exactly; None: `Work.wait()` returns a new numpy array
                (bfloat16 and float8, which numpy lacks, as a `TensorView`).

        Afterwards `work.source` is the sender's rank in this group. `work.cancel()` gives the receive up. Where several
        with one tag wait and the first one ends without its message, that is for the next receive that is called. Those
        that wait get the ones behind it.
        """
        world_rank = None if peer is None else self._peer(peer)
        return self._runtime.recv(self.name, world_rank, tag, into, timeout_s=self._timeout_s(timeout_s))

    def start(
        self, prepared: Sequence[calls.Call], *, timeout_s: float | None = None, priority: Priority = Priority.GRADIENT
    ) -> list[Work]:
        """Begin several collectives, in order, all of them or none.

        Args:
            prepared: made by `transport.collectives.calls` for `site`, which refuses what cannot work: make all of them
                before any begins.
        """
        if not prepared:
            return []
        return self._runtime.start(prepared, timeout_s=self._timeout_s(timeout_s), priority=_checked(priority))

    @property
    def next_number(self) -> int:
        """The number that the group's next collective gets here."""
        return self._runtime.next_number(self.name)

    @property
    def site(self) -> calls.CallContext:
        """Where this group's collectives are called: for `transport.collectives.calls`."""
        return calls.CallContext(group=self.name, rank=self.rank, size=self.size)

    # Lifecycle.

    def explain(self) -> dict[str, object]:
        """What this group holds for true of its links, and which algorithm each collective took, and why.

        Returns:
            A document that JSON can hold: `network`, `forced`, and `collectives`, each with the candidates' predicted
            seconds and the median of what this rank measured; `hive-qos explain-collective --from` shows it.
        """
        return {"group": self.name, "rank": self.rank, "size": self.size, **self._runtime.inspection.plans(self.name)}

    def describe(self, more: Callable[[], Mapping[str, object]]) -> None:
        """Let this rank say more of itself where `hive-qos job` asks: `more` is called in the transport's thread."""
        self._runtime.inspection.more = more

    def survey(self, want: str = jobs.GROUP, *, limit_s: float = 2.0) -> dict[str, object]:
        """What all ranks of the connected group say of themselves, each within so many seconds: `hive-qos job --json`.

        Args:
            want: another document instead (`transport.inspection.jobs.ask`).
        """
        return self._runtime.inspection.answer(want, limit_s)

    def lost_ranks(self) -> dict[int, str]:
        """The ranks of this group that are known to be gone, and why."""
        lost = self._runtime.lost()
        return {rank: lost[world] for rank, world in enumerate(self._ranks) if world in lost}

    def call_on_loss(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever a rank of the connected group is found to be gone, before operations fail for it.

        It runs in the transport's thread, must be short and must not raise. A second one replaces the first.
        """
        self._runtime.call_on_loss(callback)

    def round_trips_s(self) -> dict[int, float]:
        """To the ranks of this group that are connected, as measured."""
        found = self._runtime.round_trips_s()
        return {rank: found[world] for rank, world in enumerate(self._ranks) if world in found}

    def traffic_bytes(self) -> dict[int, tuple[int, int]]:
        """What each living connection of the connected group has sent and received since it came up, by its number:
        bytes on the wire and through shared memory, as of at most 100 ms ago.

        Raises:
            MisuseError: the group is closed.
        """
        return {
            number: (one.sent_bytes + one.shared_sent_bytes, one.received_bytes + one.shared_received_bytes)
            for number, one in self._runtime.statistics().items()
        }

    def abort(self, reason: str = "aborted") -> None:
        """End everything under way in this group with `CancelledError`, here and, as soon as told, on the others.

        What has ended well on another member by then stays so, and it waits for this rank in the next collective: call
        `give_up` where this rank will not come to that.
        """
        self._runtime.abort_group(self.name, reason)

    def give_up(self, reason: str) -> None:
        """Take no part in the next collective, which this rank cannot begin: the others raise `CancelledError`.

        Without this the rank's later calls would be matched with the others' earlier ones.
        """
        self._runtime.give_up(self.name, reason)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Leave: what is under way ends with `CancelledError`. The connected group closes its connections. Idempotent.

        The others see a departure, not a death: only operations that still need this rank fail on them.
        """
        self._runtime.remove_group(self.name)
        if self._owns_runtime:
            self._runtime.close(timeout_s=timeout_s)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _peer(self, rank: int) -> int:
        check_rank(rank, group=self.name, size=self.size)
        return self._ranks[rank]

    def _timeout_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self.timeout_s
        check_seconds("timeout_s", timeout_s)
        return timeout_s

    def _start(self, call: calls.Call, timeout_s: float | None, priority: Priority) -> Work:
        return self.start([call], timeout_s=timeout_s, priority=priority)[0]


def _checked(priority: Priority) -> Priority:
    if not isinstance(priority, Priority):
        names = ", ".join(one.name for one in Priority)
        raise MisuseError(f"priority is {priority!r}: it is one of transport.Priority, which are {names}")
    return priority
