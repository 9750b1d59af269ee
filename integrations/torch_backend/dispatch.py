"""A process group's calls by way of torch's dispatcher, so that hooks see them: flight recorder, NaN check.

torch 2.15 fires a group's pre- and post-hooks in its dispatcher. That then calls the group's Backend, and wraps what it
returns: the wrapper forwards `wait` and `get_future` alone, its `is_completed()` is False for ever, and a receive from
any rank does not say from which. So the Backend hands its own Work over here, beside torch.

The dispatcher's operations are called by name, as torch's graphs do. A process group's C++ method would do the same,
but calls what overrides it, which is where we come from.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from integrations.torch_backend.work import HiveWork

_MILLISECOND = timedelta(milliseconds=1)

OPERATIONS = {
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
    "allgather": "allgather_",
    "allgather_coalesced": "allgather_coalesced_",
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "alltoall": "alltoall_",
    "barrier": "barrier",
    "broadcast": "broadcast_",
    "gather": "gather_",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
    "reduce": "reduce_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "scatter": "scatter_",
    "send": "send",
}
"""A process group's methods, and the operations of the library `c10d` that they are."""
_FROM_OPTIONS: dict[str, Callable[[Any], object]] = {
    "reduce_op": lambda opts: opts.reduceOp.boxed(),
    "root_rank": lambda opts: opts.rootRank,
    "root_tensor": lambda opts: opts.rootTensor,
    "device_ids": lambda opts: opts.device_ids,
    "sparse_indices": lambda opts: None,
    "async_op": lambda opts: opts.asyncOp,
    "timeout": lambda opts: opts.timeout // _MILLISECOND,
}
"""Parameters of those operations that a method has in its options object. All others are the method's, in order."""


class _Calls(threading.local):
    """This thread's calls that are on their way through the dispatcher; the last is the innermost (signal handlers)."""

    def __init__(self) -> None:
        self.works: list[list[HiveWork]] = []


_calls = _Calls()


def hand_over(work: HiveWork) -> None:
    """Give a Work to the innermost call of this thread, if there is one that waits for it."""
    if _calls.works and not _calls.works[-1]:
        _calls.works[-1].append(work)


def takes(method: str, arguments: Sequence[Any]) -> bool:
    """Whether the dispatcher can take a call: it finds the device by the tensors, of which there has to be one."""
    tensors = any(isinstance(one, torch.Tensor) or (isinstance(one, Sequence) and one) for one in arguments)
    return method in OPERATIONS and (tensors or method == "barrier")


def call(boxed_group: object, method: str, arguments: Sequence[Any]) -> HiveWork:
    """Dispatch a call of one of `OPERATIONS`, and return the Work that the group's Backend made for it.

    Args:
        boxed_group: `ProcessGroup.boxed()`.
        method: its name.
        arguments: in the form that has an options object last, where the method takes one.
    """
    operation, parameters = _operation(method)
    rest = iter(arguments)
    opts = arguments[-1]
    if method == "barrier":  # the operation takes a tensor, for its device alone
        rest = iter([torch.empty(1, dtype=torch.uint8, device=opts.device or "cpu")])
    filled = [
        boxed_group if name == "process_group" else _FROM_OPTIONS[name](opts) if name in _FROM_OPTIONS else next(rest)
        for name in parameters
    ]
    works: list[HiveWork] = []
    _calls.works.append(works)
    try:
        operation(*filled)
    finally:
        _calls.works.pop()
    return works[0]


@functools.cache
def _operation(method: str) -> tuple[Callable[..., object], tuple[str, ...]]:
    """An operation and its parameters' names."""
    operation = getattr(torch.ops.c10d, OPERATIONS[method]).default
    return operation, tuple(argument.name for argument in operation._schema.arguments)
