"""torch's names and argument shapes of the collectives, over `collectives`.

torch calls by several names for one thing: `_allgather_base` is `all_gather_single` since 2.13, and functional
collectives use the `_coalesced` forms. A method that is missing fails as "No backend type associated with device type
cpu", so that all names are here, each with all its overloads (`overloads`).

A rank that raises before it has begun a collective gives up its place in the group's order: the others, which wait for
it in that collective, raise as well, with its reason, and the next collective is the next one for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from hive_qos.errors import HiveError, MisuseError
from integrations.torch_backend import monitored_barrier
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.errors import as_torch_error
from integrations.torch_backend.operations import Tensors
from integrations.torch_backend.overloads import Overloads
from integrations.torch_backend.reconfiguration import Reconfiguration
from integrations.torch_backend.reduce_op import reduction_of, scale, scaled
from integrations.torch_backend.work import HiveWork, uncompiled

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate["Methods", P], R]


def raising_torch_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Let our errors leave `method` as classes that are RuntimeErrors as well. It is for torch to call."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except HiveError as error:
            raise as_torch_error(error) from error

    return uncompiled(wrapper)


def called_as(*forms: str) -> Callable[[Method[P, R]], Callable[..., R]]:
    """Call the method with the arguments of the first of c10d's forms, whichever of them the caller used."""

    def decorate(method: Method[P, R]) -> Callable[..., R]:
        overloads = Overloads(method.__name__, forms)

        @functools.wraps(method)
        def wrapper(self: Methods, /, *args: Any, **kwargs: Any) -> R:
            result: R = self.run(method, overloads.arguments(args, kwargs))
            return result

        return raising_torch_errors(wrapper)

    return decorate


def collective(*forms: str, coalesced: bool = False) -> Callable[[Method[P, HiveWork]], Callable[..., HiveWork]]:
    """`called_as`, for what every member calls: if it raises here, the others learn of it.

    Args:
        forms: c10d's.
        coalesced: the first argument lists the tensors of several collectives.
    """

    def decorate(method: Method[P, HiveWork]) -> Callable[..., HiveWork]:
        overloads = Overloads(method.__name__, forms)

        @functools.wraps(method)
        def wrapper(self: Methods, /, *args: Any, **kwargs: Any) -> HiveWork:
            count, since = 1, None
            try:
                since = self.collectives.places()
                if coalesced:  # as many as the others begin, as far as a call that fits no form tells
                    count = next((len(one) for one in (*kwargs.values(), *args[::-1]) if isinstance(one, Sequence)), 1)
                arguments = overloads.arguments(args, kwargs)
                count = len(arguments[-2]) if coalesced else 1
                work: HiveWork = self.run(method, arguments)
                return work
            except Exception as error:
                self.collectives.give_up(method.__name__, error, since=since, count=count)
                raise

        return raising_torch_errors(wrapper)

    return decorate


class Methods:
    """What torch calls on a backend or on a process group. The adapter that mixes this in sets `collectives` first."""

    collectives: Collectives
    reconfiguration: Reconfiguration | None = None
    """Where the group was made with enable_reconfigure=True."""
    store: Any = None
    """What torch gave the group to meet in, until it has ended."""

    def rank(self) -> int:
        return int(self.collectives.group.rank)

    def size(self) -> int:
        return int(self.collectives.group.size)

    def run(self, method: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Carry out a call whose arguments have been brought to the method's own form."""
        return method(self, *arguments)

    @collective(
        "tensors: [T], opts: AllreduceOptions",
        "tensors: [T], op: ReduceOp, timeout: timedelta",
        "tensor: T, op: ReduceOp, timeout: timedelta",
    )
    def allreduce(self, tensors: Tensors, opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        tensor = _only(tensors)
        if tensor.layout is torch.sparse_coo:
            if factor is not None:
                raise MisuseError("a sparse all-reduce takes no PREMUL_SUM")
            return self.collectives.sparse_allreduce(tensor, op, timeout_s=_timeout_s(opts))
        return self.collectives.allreduce(tensors, op, factor=factor, timeout_s=_timeout_s(opts))

    @collective("tensors: [T], opts: AllreduceCoalescedOptions", coalesced=True)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        return self.collectives.allreduce(tensors, op, factor=factor, timeout_s=_timeout_s(opts))

    @collective("tensors: [T], opts: BroadcastOptions", "tensor: T, root: int, timeout: timedelta")
    def broadcast(self, tensors: Tensors, opts: Any) -> HiveWork:
        return self.collectives.broadcast([_only(tensors)], opts.rootRank, timeout_s=_timeout_s(opts))

    @collective("tensors: [T], opts: ReduceOptions", "tensor: T, root: int, op: ReduceOp, timeout: timedelta")
    def reduce(self, tensors: Tensors, opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        tensor = _only(tensors)
        if factor is not None and self.collectives.group.rank == opts.rootRank:
            scale(tensor, factor)
        else:
            tensor = scaled(tensor, factor)  # those of other ranks than the root stay as they are
        return self.collectives.reduce(tensor, opts.rootRank, op, timeout_s=_timeout_s(opts))

    @collective(
        "output_tensors: [[T]], input_tensors: [T], opts: AllgatherOptions",
        "output_tensors: [T], input_tensor: T, timeout: timedelta",
    )
    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any) -> HiveWork:
        outputs, tensor = _only_list(output_tensors), _only(input_tensors)
        return self.collectives.all_gather([outputs], [tensor], timeout_s=_timeout_s(opts))

    @collective("output_lists: [[T]], input_list: [T], opts: AllgatherOptions", coalesced=True)
    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any) -> HiveWork:
        """Unlike `allgather`, the outer list is by rank: `output_lists[rank][i]` is that rank's `input_list[i]`."""
        if any(len(row) != len(input_list) for row in output_lists):
            raise MisuseError(f"every list of outputs must have {len(input_list)} tensors, as many as there are inputs")
        by_input = [list(row) for row in zip(*output_lists, strict=True)]
        return self.collectives.all_gather(by_input, input_list, timeout_s=_timeout_s(opts))

    @collective("output: T, input: T, opts: AllgatherOptions")
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> HiveWork:
        return self.collectives.all_gather_single([output], [input], timeout_s=_timeout_s(opts))

    _allgather_base = all_gather_single

    @collective("outputs: [T], inputs: [T], opts: AllgatherOptions", coalesced=True)
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> HiveWork:
        return self.collectives.all_gather_single(outputs, inputs, timeout_s=_timeout_s(opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective(
        "output_tensors: [T], input_tensors: [[T]], opts: ReduceScatterOptions",
        "output: T, input: [T], op: ReduceOp, timeout: timedelta",
        "output_tensors: T, input_tensor: [T], op: ReduceOp, timeout: timedelta",
    )
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        inputs = [scaled(tensor, factor) for tensor in _only_list(input_tensors)]
        return self.collectives.reduce_scatter([_only(output_tensors)], [inputs], op, timeout_s=_timeout_s(opts))

    @collective("outputTensor: T, inputTensor: T, opts: ReduceScatterOptions")
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        return self.collectives.reduce_scatter_single([output], [scaled(input, factor)], op, timeout_s=_timeout_s(opts))

    _reduce_scatter_base = reduce_scatter_single

    @collective("outputs: [T], inputs: [T], opts: ReduceScatterOptions", coalesced=True)
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> HiveWork:
        op, factor = reduction_of(opts.reduceOp)
        sources = [scaled(tensor, factor) for tensor in inputs]
        return self.collectives.reduce_scatter_single(outputs, sources, op, timeout_s=_timeout_s(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @collective(
        "output_tensors: [[T]], input_tensors: [T], opts: GatherOptions",
        "output_tensors: [T], input_tensor: T, root: int, timeout: timedelta",
    )
    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any) -> HiveWork:
        outputs = _only_list(output_tensors) if output_tensors else []
        return self.collectives.gather(outputs, _only(input_tensors), opts.rootRank, timeout_s=_timeout_s(opts))

    @collective("output: T, input: T, opts: GatherOptions")
    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> HiveWork:
        """`gather` into one tensor; off the root, `output` is a placeholder."""
        if opts.rootRank != self.collectives.group.rank:
            return self.gather([], [input], opts)
        return self.gather([self.collectives.equal_parts("gather", output, input)], [input], opts)

    gather_into_tensor = gather_single

    @collective(
        "output_tensors: [T], input_tensors: [[T]], opts: ScatterOptions",
        "output_tensor: T, input_tensors: [T], root: int, timeout: timedelta",
    )
    def scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any) -> HiveWork:
        inputs = _only_list(input_tensors) if input_tensors else []
        return self.collectives.scatter(_only(output_tensors), inputs, opts.rootRank, timeout_s=_timeout_s(opts))

    @collective(
        "output_tensors: [T], input_tensors: [T], opts: AllToAllOptions",
        "output_tensor: [T], input_tensor: [T], opts: AllToAllOptions",
    )
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any) -> HiveWork:
        return self.collectives.all_to_all(output_tensors, input_tensors, timeout_s=_timeout_s(opts))

    @collective(
        "output: T, input: T, output_split_sizes: [int], input_split_sizes: [int], opts: AllToAllOptions",
        "output: T, input: T, output_split_sizes: [int], input_split_sizes: [int], timeout: timedelta",
        "output_tensor: T, input_tensor: T, output_split_sizes: [int], input_split_sizes: [int], opts: AllToAllOptions",
    )
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> HiveWork:
        return self.collectives.all_to_all_single(
            output, input, output_rows=output_split_sizes, input_rows=input_split_sizes, timeout_s=_timeout_s(opts)
        )

    alltoall_base = all_to_all_single

    @collective("opts: BarrierOptions", "timeout: timedelta")
    def barrier(self, opts: Any) -> HiveWork:
        return self.collectives.barrier(timeout_s=_timeout_s(opts))

    @called_as("tensors: [T], dstRank: int, tag: int")
    def send(self, tensors: Tensors, dst: int, tag: int) -> HiveWork:
        return self.collectives.send(_only(tensors), dst, tag)

    @called_as("tensors: [T], srcRank: int, tag: int")
    def recv(self, tensors: Tensors, src: int, tag: int) -> HiveWork:
        return self.collectives.recv(_only(tensors), src, tag)

    @called_as("tensors: [T], tag: int")
    def recv_anysource(self, tensors: Tensors, tag: int) -> HiveWork:
        return self.collectives.recv(_only(tensors), None, tag)

    @called_as("timeout: timedelta, wait_all_ranks: bool", "opts: BarrierOptions, wait_all_ranks: bool")
    def monitored_barrier(self, timeout: Any, wait_all_ranks: bool) -> None:
        limit_s = _seconds(getattr(timeout, "timeout", timeout))  # torch 2.15 calls a backend with the options object
        monitored_barrier.barrier(self.collectives, timeout_s=limit_s, wait_all_ranks=wait_all_ranks)

    # Lifecycle.

    @raising_torch_errors
    def abort(self) -> None:
        if self.reconfiguration is not None:
            self.reconfiguration.cancel("the process group was aborted")
        self.collectives.abort("the process group was aborted")

    @raising_torch_errors
    def shutdown(self) -> None:
        if self.reconfiguration is not None:
            self.reconfiguration.close()
        self.collectives.close()

    @raising_torch_errors
    def get_reconfigure_handle(self) -> str:
        """As `Reconfiguration.handle`."""
        return self._reconfiguration().handle()

    @raising_torch_errors
    def reconfigure(self, opts: Any) -> HiveWork:
        """As `Reconfiguration.begin`; `opts` are torch's ReconfigureOptions."""
        handles = sorted(opts.handles) if isinstance(opts.handles, set) else opts.handles
        if opts.hints:
            raise MisuseError(f"reconfigure: hive takes no hints, and got {', '.join(sorted(opts.hints))}")
        return self._reconfiguration().begin(opts.uuid, handles, timeout_s=_seconds(opts.timeout))

    def _reconfiguration(self) -> Reconfiguration:
        if self.reconfiguration is None:
            raise MisuseError("this group keeps its ranks: make it by init_process_group(enable_reconfigure=True)")
        return self.reconfiguration

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Call `hook` before an abort, and whenever an operation has failed. It may be called more than once."""
        self.collectives.abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self.collectives.abort_hooks.pop(hook_id, None)

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self.collectives.start_coalescing()

    @raising_torch_errors
    def _end_coalescing(self, device: torch.device | None = None) -> HiveWork:
        return self.collectives.end_coalescing()

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self.collectives.add_ephemeral_timeout(timeout.total_seconds())

    def set_timeout(self, timeout: timedelta) -> None:
        self.collectives.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: every rank counts from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self.collectives.sequence


def _only(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise MisuseError(f"this operation takes one tensor, not {len(tensors)}; the coalesced ones take several")
    return tensors[0]


def _only_list(lists: Sequence[Tensors]) -> Tensors:
    if len(lists) != 1:
        raise MisuseError(
            f"this operation takes one list of tensors, not {len(lists)}; the coalesced ones take several"
        )
    return lists[0]


def _timeout_s(opts: Any) -> float | None:
    return _seconds(getattr(opts, "timeout", None))


def _seconds(timeout: Any) -> float | None:
    """torch's timeouts are timedeltas; one below zero means "the group's"."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds >= 0 else None
