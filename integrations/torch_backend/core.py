"""The collectives that torch asks for, over `transport.Group`: what goes where, in plain arguments.

The adapters translate torch's two ways of calling into these methods. Each returns a running `HiveWork` at once.
Tensors are staged (`staging`), all that an operation consists of is checked, and only then any of it starts, in the
order of the calls (`completion.FirstInFirstOut`). The transport does the rest. Errors are `HiveError`s here; the
adapters make them torch's as well.
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
from integrations.torch_backend.completion import CompletionThreads, FirstInFirstOut
from integrations.torch_backend.staging import Staged, finish_all, until_all_ready
from integrations.torch_backend.work import HiveWork
from integrations.torch_backend.world import World
from transport.collectives import calls

Tensors = Sequence[torch.Tensor]
Places = tuple[int, int | None]
StartMessage = Callable[[float], transport.Work]
"""Starts a message at the transport, given its timeout in seconds."""

_threads = CompletionThreads()


class Core:
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

    # Collectives.

    def allreduce(
        self,
        tensors: Tensors,
        op: transport.ReduceOp,
        *,
        factor: float | torch.Tensor | None = None,
        timeout_s: float | None = None,
    ) -> HiveWork:
        """Reduce each tensor in place, over all ranks. `factor` multiplies this rank's values first."""
        if factor is not None:
            for tensor in tensors:
                tensor.detach().mul_(factor if isinstance(factor, float | int) else factor.to(tensor.device))
        staged = [Staged(tensor, read=True, write=True) for tensor in tensors]
        return self.launch(
            "all-reduce",
            staged,
            [calls.allreduce(self.group.site, one.memory, op) for one in staged],
            result=tensors,
            timeout_s=timeout_s,
        )

    def broadcast(self, tensors: Tensors, root: int, *, timeout_s: float | None = None) -> HiveWork:
        """Copy the root's tensors into everybody's."""
        mine = root == self.group.rank
        staged = [Staged(tensor, read=mine, write=not mine) for tensor in tensors]
        return self.launch(
            "broadcast",
            staged,
            [calls.broadcast(self.group.site, one.memory, root) for one in staged],
            result=tensors,
            timeout_s=timeout_s,
        )

    def reduce(
        self, tensor: torch.Tensor, root: int, op: transport.ReduceOp, *, timeout_s: float | None = None
    ) -> HiveWork:
        """Reduce everybody's tensor into the root's."""
        staged = Staged(tensor, read=True, write=root == self.group.rank)
        return self.launch(
            "reduce",
            [staged],
            [calls.reduce(self.group.site, staged.memory, root, op)],
            result=[tensor],
            timeout_s=timeout_s,
        )

    def all_gather(self, outputs: Sequence[Tensors], inputs: Tensors, *, timeout_s: float | None = None) -> HiveWork:
        """For each input: every rank's tensor, in rank order, into the outputs at the same place of the list."""
        sources = _sources(inputs)
        targets = [_targets(row) for row in outputs]
        return self.launch(
            "all-gather",
            [*sources, *(one for row in targets for one in row)],
            [
                calls.all_gather(self.group.site, _memories(row), source.memory)
                for row, source in zip(targets, sources, strict=True)
            ],
            result=[tensor for row in outputs for tensor in row],
            timeout_s=timeout_s,
        )

    def all_gather_single(self, outputs: Tensors, inputs: Tensors, *, timeout_s: float | None = None) -> HiveWork:
        """For each input: every rank's tensor, one after the other, into one output that is `size` times as large."""
        for output, source in zip(outputs, inputs, strict=True):
            self._check_times_size("all-gather", large=output, small=source)
        sources = _sources(inputs)
        targets = _targets(outputs)
        return self.launch(
            "all-gather",
            [*sources, *targets],
            [
                calls.all_gather(self.group.site, self._parts(target), source.flat)
                for target, source in zip(targets, sources, strict=True)
            ],
            result=outputs,
            timeout_s=timeout_s,
        )

    def reduce_scatter(
        self,
        outputs: Tensors,
        inputs: Sequence[Tensors],
        op: transport.ReduceOp,
        *,
        timeout_s: float | None = None,
    ) -> HiveWork:
        """For each output: reduce everybody's `inputs[...][rank]` into it."""
        targets = _targets(outputs)
        sources = [_sources(row) for row in inputs]
        return self.launch(
            "reduce-scatter",
            [*targets, *(one for row in sources for one in row)],
            [
                calls.reduce_scatter(self.group.site, target.memory, _memories(row), op)
                for target, row in zip(targets, sources, strict=True)
            ],
            result=outputs,
            timeout_s=timeout_s,
        )

    def reduce_scatter_single(
        self, outputs: Tensors, inputs: Tensors, op: transport.ReduceOp, *, timeout_s: float | None = None
    ) -> HiveWork:
        """For each output: reduce everybody's part `rank` of one input that is `size` times as large."""
        for output, source in zip(outputs, inputs, strict=True):
            self._check_times_size("reduce-scatter", large=source, small=output)
        targets = _targets(outputs)
        sources = _sources(inputs)
        return self.launch(
            "reduce-scatter",
            [*targets, *sources],
            [
                calls.reduce_scatter(self.group.site, target.flat, self._parts(source), op)
                for target, source in zip(targets, sources, strict=True)
            ],
            result=outputs,
            timeout_s=timeout_s,
        )

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int, *, timeout_s: float | None = None) -> HiveWork:
        """Every rank's tensor into the root's outputs; `outputs` is empty elsewhere."""
        self._check_list_is_the_roots("gather takes a list of outputs", outputs, root)
        source = _source(tensor)
        targets = _targets(outputs)
        return self.launch(
            "gather",
            [source, *targets],
            [calls.gather(self.group.site, _memories(targets) or None, source.memory, root)],
            result=outputs,
            timeout_s=timeout_s,
        )

    def scatter(self, output: torch.Tensor, inputs: Tensors, root: int, *, timeout_s: float | None = None) -> HiveWork:
        """The root's input `rank` into everybody's output; `inputs` is empty elsewhere."""
        self._check_list_is_the_roots("scatter takes a list of inputs", inputs, root)
        target = _target(output)
        sources = _sources(inputs)
        return self.launch(
            "scatter",
            [target, *sources],
            [calls.scatter(self.group.site, target.memory, _memories(sources) or None, root)],
            result=[output],
            timeout_s=timeout_s,
        )

    def all_to_all(self, outputs: Tensors, inputs: Tensors, *, timeout_s: float | None = None) -> HiveWork:
        """`inputs[i]` to rank i, `outputs[j]` from rank j."""
        targets = _targets(outputs)
        sources = _sources(inputs)
        return self.launch(
            "all-to-all",
            [*targets, *sources],
            [calls.all_to_all(self.group.site, _memories(targets), _memories(sources))],
            result=outputs,
            timeout_s=timeout_s,
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        *,
        output_rows: Sequence[int],
        input_rows: Sequence[int],
        timeout_s: float | None = None,
    ) -> HiveWork:
        """Rows of `source` to the ranks in order, `input_rows[i]` of them to rank i; equally where that is empty."""
        target = _target(output)
        taken = _source(source)
        target_rows = self._rows(output, output_rows)
        source_rows = self._rows(source, input_rows)
        return self.launch(
            "all-to-all",
            [target, taken],
            [
                calls.all_to_all(
                    self.group.site, torch.split(target.memory, target_rows), torch.split(taken.memory, source_rows)
                )
            ],
            result=[output],
            timeout_s=timeout_s,
        )

    def barrier(self, *, timeout_s: float | None = None) -> HiveWork:
        """Ends when every rank has called it and this rank's earlier collectives have ended."""
        return self.launch(
            "barrier",
            [],
            [calls.barrier(self.group.site)],
            result=[],
            timeout_s=timeout_s,
            also=list(self._running),
            priority=transport.Priority.CONTROL,
        )

    # Point to point.

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> HiveWork:
        """Send to a rank of this group, which receives with the same tag."""
        staged = _source(tensor)
        return self.launch(
            f"send to rank {peer}",
            [staged],
            lambda limit_s: self.group.send(staged.memory, peer, tag, timeout_s=limit_s),
            result=[],
        )

    def recv(self, tensor: torch.Tensor, peer: int | None, tag: int) -> HiveWork:
        """Receive from a rank of this group, or from whichever sends first."""
        staged = _target(tensor)
        return self.launch(
            f"receive from {'any rank' if peer is None else f'rank {peer}'}",
            [staged],
            lambda limit_s: self.group.recv(staged.memory, peer, tag, timeout_s=limit_s),
            result=[tensor],
        )

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

    def _parts(self, staged: Staged) -> list[torch.Tensor]:
        """A flat tensor cut into `size` equal parts."""
        flat = staged.flat
        elems = flat.numel() // self.group.size
        return [flat[rank * elems : (rank + 1) * elems] for rank in range(self.group.size)]

    def _check_times_size(self, what: str, *, large: torch.Tensor, small: torch.Tensor) -> None:
        if large.numel() != small.numel() * self.group.size or large.dtype != small.dtype:
            raise MisuseError(
                f"{what}: {large.numel()} elements of {large.dtype} are not {self.group.size} times"
                f" {small.numel()} of {small.dtype}"
            )

    def _check_list_is_the_roots(self, what: str, tensors: Tensors, root: int) -> None:
        if (root == self.group.rank) != bool(tensors):
            raise MisuseError(f"{what} on the root, and only there")

    def _rows(self, tensor: torch.Tensor, rows: Sequence[int]) -> list[int]:
        """How many rows each rank has in an all-to-all."""
        length = tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if length % self.group.size:
                raise MisuseError(f"all-to-all: {length} rows cannot be divided among {self.group.size} ranks")
            return [length // self.group.size] * self.group.size
        if len(rows) != self.group.size or sum(rows) != length or min(rows) < 0:
            raise MisuseError(f"all-to-all: split sizes {list(rows)} do not add up to {length} rows")
        return list(rows)


def _source(tensor: torch.Tensor) -> Staged:
    return Staged(tensor, read=True, write=False)


def _target(tensor: torch.Tensor) -> Staged:
    return Staged(tensor, read=False, write=True)


def _sources(tensors: Tensors) -> list[Staged]:
    return [_source(tensor) for tensor in tensors]


def _targets(tensors: Tensors) -> list[Staged]:
    return [_target(tensor) for tensor in tensors]


def _memories(staged: Sequence[Staged]) -> list[torch.Tensor]:
    """What the transport reads and writes, once they are ready."""
    return [one.memory for one in staged]
