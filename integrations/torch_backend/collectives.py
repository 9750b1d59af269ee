"""The collectives and messages that torch asks for, over `transport.Group`: what goes where, in plain arguments.

`c10d_methods` translates torch's ways of calling into these methods. Each returns a running `HiveWork` at once. Tensors
are staged (`staging`), all that an operation consists of is checked, and only then any of it starts (`operations`).
Errors are `HiveError`s here; `c10d_methods` makes them torch's as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import transport
from hive_qos.errors import MisuseError
from integrations.torch_backend.operations import Later, Operations, Tensors
from integrations.torch_backend.reduce_op import check_factor, scale
from integrations.torch_backend.staging import Staged
from integrations.torch_backend.work import HiveWork
from transport.collectives import calls


class Collectives(Operations):
    """One process group's collectives and messages."""

    def allreduce(
        self,
        tensors: Tensors,
        op: transport.ReduceOp,
        *,
        factor: float | torch.Tensor | None = None,
        timeout_s: float | None = None,
        compression: calls.Compression | None = None,
    ) -> HiveWork:
        """Reduce each tensor in place, over all ranks.

        Args:
            factor: multiplies this rank's values first.
            compression: None for the group's.
        """
        if factor is not None:
            for tensor in tensors:
                check_factor(tensor)
            for tensor in tensors:
                scale(tensor, factor)
        staged = [Staged(tensor, read=True, write=True) for tensor in tensors]
        return self.launch(
            "all-reduce",
            staged,
            [
                calls.allreduce(self.group.site, one.memory, op, compression or self._compression_of(one.tensor, op))
                for one in staged
            ],
            result=tensors,
            timeout_s=timeout_s,
        )

    @property
    def _compression(self) -> calls.Compression | None:
        """The group's, for values whose memory is another one each time, as FSDP2's."""
        return self.group.compression(self.options.compression) if self.options.compression else None

    @property
    def _gather_compression(self) -> calls.Compression | None:
        return self.group.compression(self.options.gather_compression) if self.options.gather_compression else None

    def _compression_of(self, tensor: torch.Tensor, op: transport.ReduceOp) -> calls.Compression | None:
        """The group's, for a tensor that is known by its memory as long as that lives, as DDP's buckets are."""
        if not self.options.compression:
            return None
        weakly: Any = StorageWeakRef  # torch has no types for it
        key = (weakly(tensor.untyped_storage()), tensor.storage_offset(), tensor.numel(), op)
        compression = self.group.compression(self.options.compression, key)
        compression.kept.drop(lambda one: one[0].expired())
        return compression

    def sparse_allreduce(
        self, tensor: torch.Tensor, op: transport.ReduceOp, *, timeout_s: float | None = None
    ) -> HiveWork:
        """Sum a sparse (COO) CPU tensor over all ranks, in place, as an embedding with `sparse=True` gives DDP.

        Every rank sums the same entries in rank order, so that all hold the same bits. Ranks have different numbers of
        entries: these are exchanged first, and hold back what comes after; then indices and values.

        Raises:
            MisuseError: not a sum, or not on the CPU.
        """
        if op is not transport.ReduceOp.SUM or tensor.device.type != "cpu":
            raise MisuseError("a sparse all-reduce sums tensors on the CPU")
        mine = tensor.detach().coalesce()
        counts = torch.zeros(self.group.size, dtype=torch.int64, device="cpu")
        own_count = torch.tensor([mine.values().shape[0]], device="cpu")
        counted = self.all_gather_single([counts], [own_count], timeout_s=timeout_s)
        indices: list[torch.Tensor] = []
        values: list[torch.Tensor] = []

        def with_places() -> list[calls.Call]:
            counted.wait()
            for count in counts.tolist():
                indices.append(mine.indices().new_empty((mine.sparse_dim(), count)))
                values.append(mine.values().new_empty((count, *mine.values().shape[1:])))
            for parts, own in ((indices, mine.indices()), (values, mine.values())):
                parts[self.group.rank].copy_(own)
            return [calls.all_gather(self.group.site, parts, parts[self.group.rank]) for parts in (indices, values)]

        def add_up() -> None:
            total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), mine.shape)
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():  # as in `Staged.bring_back`
                tensor.copy_(total.coalesce())

        start = Later(with_places)
        return self.launch("sparse all-reduce", [], start, result=[tensor], timeout_s=timeout_s, finish=add_up)

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
            [calls.reduce(self.group.site, staged.memory, root, op, self._compression)],
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
                calls.all_gather(self.group.site, _memories(row), source.memory, self._gather_compression)
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
                calls.all_gather(self.group.site, self._parts(target), source.flat, self._gather_compression)
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
                calls.reduce_scatter(self.group.site, target.memory, _memories(row), op, self._compression)
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
                calls.reduce_scatter(self.group.site, target.flat, self._parts(source), op, self._compression)
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
            [calls.all_to_all(self.group.site, _split(target.memory, target_rows), _split(taken.memory, source_rows))],
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
            also=[one for one in list(self._running) if not one.calls_back],
            priority=transport.Priority.CONTROL,
        )

    # Point to point.

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> HiveWork:
        """Send to a rank of this group, which receives with the same tag."""
        staged = _source(tensor)
        asked = self.options.priority
        priority = transport.Priority.ACTIVATION if asked is None else asked
        return self.launch(
            f"send to rank {peer}",
            [staged],
            lambda limit_s: self.group.send(staged.memory, peer, tag, timeout_s=limit_s, priority=priority),
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

    def equal_parts(self, what: str, large: torch.Tensor, small: torch.Tensor) -> list[torch.Tensor]:
        """A contiguous tensor as `size` views of `small`'s shape.

        Raises:
            MisuseError: it is not `size` times as large, or not contiguous.
        """
        self._check_times_size(what, large=large, small=small)
        if not large.is_contiguous():
            raise MisuseError(f"{what}: the output has to be contiguous")
        return list(large.detach().view(self.group.size, *small.shape))

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


def _split(tensor: torch.Tensor, rows: Sequence[int]) -> Tensors:
    """A tensor without dimensions is one row."""
    return torch.split(tensor if tensor.dim() else tensor.unsqueeze(0), list(rows))


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
