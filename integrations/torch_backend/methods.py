"""torch's names and argument shapes of the collectives, the same for both adapters, over `core`.

torch calls by several names for one thing: `_allgather_base` before 2.14 is `all_gather_single` since, and functional
collectives use the `_coalesced` forms. A method that is missing fails as "No backend type associated with device type
cpu", so that all names are here. Options are torch's option objects; the plain forms (`allreduce([t])`, `barrier()`),
which Python code calls on a process group directly, work as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch

from hive_qos.errors import HiveError, MisuseError
from integrations.torch_backend import monitor, sparse
from integrations.torch_backend.core import Core, Tensors
from integrations.torch_backend.errors import as_torch_error
from integrations.torch_backend.reduction import reduction_of
from integrations.torch_backend.work import HiveWork
from transport import ReduceOp

P = ParamSpec("P")
R = TypeVar("R")


def raising_torch_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Let our errors leave `method` as classes that are RuntimeErrors as well."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except HiveError as error:
            raise as_torch_error(error) from error

    return wrapper


class Methods:
    """What torch calls on a backend or on a process group. The adapter that mixes this in sets `core` first."""

    core: Core

    @raising_torch_errors
    def allreduce(self, tensors: Any, opts: Any = None) -> HiveWork:
        tensors = _tensors(tensors)
        op, factor = _reduction(opts)
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            return sparse.allreduce(self.core, tensors, op, timeout_s=_timeout_s(opts))
        return self.core.allreduce(tensors, op, factor=factor, timeout_s=_timeout_s(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> HiveWork:
        return self.allreduce(tensors, opts)

    @raising_torch_errors
    def broadcast(self, tensors: Any, opts: Any = None) -> HiveWork:
        return self.core.broadcast(_tensors(tensors), _root(opts), timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def reduce(self, tensors: Any, opts: Any = None) -> HiveWork:
        op, factor = _reduction(opts)
        tensor = _only(tensors)
        if factor is not None:
            tensor = tensor.detach() * factor  # the tensors of other ranks than the root stay as they are
            if self.core.group.rank == _root(opts):
                _only(tensors).detach().copy_(tensor)
                tensor = _only(tensors)
        return self.core.reduce(tensor, _root(opts), op, timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> HiveWork:
        return self.core.all_gather(output_tensors, input_tensors, timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> HiveWork:
        """Unlike `allgather`, the outer list is by rank: `output_lists[rank][i]` is that rank's `input_tensors[i]`."""
        by_input = [list(row) for row in zip(*output_lists, strict=True)]
        return self.core.all_gather(by_input, input_tensors, timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HiveWork:
        return self.core.all_gather_single([output], [input], timeout_s=_timeout_s(opts))

    _allgather_base = all_gather_single

    @raising_torch_errors
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HiveWork:
        return self.core.all_gather_single(outputs, inputs, timeout_s=_timeout_s(opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @raising_torch_errors
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None) -> HiveWork:
        op, factor = _reduction(opts)
        inputs = [[_times(tensor, factor) for tensor in row] for row in input_tensors]
        return self.core.reduce_scatter(output_tensors, inputs, op, timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HiveWork:
        op, factor = _reduction(opts)
        return self.core.reduce_scatter_single([output], [_times(input, factor)], op, timeout_s=_timeout_s(opts))

    _reduce_scatter_base = reduce_scatter_single

    @raising_torch_errors
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HiveWork:
        op, factor = _reduction(opts)
        scaled = [_times(tensor, factor) for tensor in inputs]
        return self.core.reduce_scatter_single(outputs, scaled, op, timeout_s=_timeout_s(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @raising_torch_errors
    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Any, opts: Any = None) -> HiveWork:
        outputs = output_tensors[0] if output_tensors else []
        return self.core.gather(outputs, _only(input_tensors), _root(opts), timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def scatter(self, output_tensors: Any, input_tensors: Sequence[Tensors], opts: Any = None) -> HiveWork:
        inputs = input_tensors[0] if input_tensors else []
        return self.core.scatter(_only(output_tensors), inputs, _root(opts), timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> HiveWork:
        return self.core.all_to_all(output_tensors, input_tensors, timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> HiveWork:
        return self.core.all_to_all_single(
            output,
            input,
            output_rows=output_split_sizes or (),
            input_rows=input_split_sizes or (),
            timeout_s=_timeout_s(opts),
        )

    alltoall_base = all_to_all_single

    @raising_torch_errors
    def send(self, tensors: Any, dst: int, tag: int = 0) -> HiveWork:
        return self.core.send(_only(tensors), dst, tag)

    @raising_torch_errors
    def recv(self, tensors: Any, src: int, tag: int = 0) -> HiveWork:
        return self.core.recv(_only(tensors), src, tag)

    @raising_torch_errors
    def recv_anysource(self, tensors: Any, tag: int = 0) -> HiveWork:
        return self.core.recv(_only(tensors), None, tag)

    @raising_torch_errors
    def barrier(self, opts: Any = None) -> HiveWork:
        return self.core.barrier(timeout_s=_timeout_s(opts))

    @raising_torch_errors
    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        # torch 2.15 passes its options object, torch 2.13 the timeout itself.
        limit_s = _seconds(getattr(timeout, "timeout", timeout))
        monitor.barrier(self.core, timeout_s=limit_s, wait_all_ranks=wait_all_ranks)

    # Lifecycle.

    @raising_torch_errors
    def abort(self) -> None:
        self.core.abort("the process group was aborted")

    @raising_torch_errors
    def shutdown(self) -> None:
        self.core.close()

    def set_timeout(self, timeout: timedelta) -> None:
        self.core.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: every rank counts from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self.core.sequence


def _tensors(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _only(tensors: Any) -> torch.Tensor:
    found = _tensors(tensors)
    if len(found) != 1:
        raise MisuseError(f"this operation takes one tensor, not {len(found)}")
    return found[0]


def _root(opts: Any) -> int:
    return opts if isinstance(opts, int) else 0 if opts is None else int(opts.rootRank)


def _reduction(opts: Any) -> tuple[ReduceOp, float | torch.Tensor | None]:
    if opts is None:
        return ReduceOp.SUM, None
    return reduction_of(getattr(opts, "reduceOp", opts))


def _timeout_s(opts: Any) -> float | None:
    return _seconds(getattr(opts, "timeout", None))


def _seconds(timeout: Any) -> float | None:
    """torch's timeouts are timedeltas; one below zero means "the group's"."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds >= 0 else None


def _times(tensor: torch.Tensor, factor: float | torch.Tensor | None) -> torch.Tensor:
    if factor is None:
        return tensor
    return tensor.detach() * (factor if isinstance(factor, float | int) else factor.to(tensor.device))
