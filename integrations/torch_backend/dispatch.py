"""A process group's calls by way of torch's dispatcher, so that hooks see them: flight recorder, NaN check.

torch 2.15 fires a group's pre- and post-hooks in its dispatcher. That then calls the group's Backend, and wraps what it
returns: the wrapper forwards `wait` and `get_future` alone, its `is_completed()` is False for ever, and a receive from
any rank does not say from which. So the Backend hands its own Work over here, beside torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from integrations.torch_backend.work import HiveWork

_ProcessGroup: Any = dist.ProcessGroup
_Work: Any = dist.Work
_MILLISECOND = timedelta(milliseconds=1)


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
    return method in METHODS and (tensors or method == "barrier")


def call(group: Any, method: str, arguments: Sequence[Any]) -> dist.Work:
    """Dispatch a call of one of `METHODS`, and return the Work that the group's Backend made for it.

    Tensors without data (of device "meta", or in torch's fake mode) reach no Backend, and get a Work of torch's.

    Args:
        group: the process group.
        method: its name.
        arguments: in the form that has an options object last, where the method takes one.
    """
    works: list[HiveWork] = []
    _calls.works.append(works)
    try:
        others: Any = METHODS[method](group, *arguments)
    finally:
        _calls.works.pop()
    if works:
        return works[0]
    return others if isinstance(others, dist.Work) else _Work.unbox(others)


def _inherited(name: str) -> Callable[..., object]:
    """torch's own method, for a class that overrides it: what `super()` is to an override.

    pybind11 calls the override again, and so comes back here without end, unless the caller has the override's name.
    """
    method = getattr(_ProcessGroup, name)

    def inherited(self: Any, *arguments: Any) -> object:
        return method(self, *arguments)

    inherited.__code__ = inherited.__code__.replace(co_name=name)
    return inherited


# torch looks these three up by an older name as well, so that no caller has the right one: the operation itself.


def _all_to_all_single(group: Any, output: Any, source: Any, rows_out: Any, rows_in: Any, opts: Any) -> object:
    timeout_ms = opts.timeout // _MILLISECOND
    return torch.ops.c10d.alltoall_base_(output, source, group.boxed(), rows_out, rows_in, opts.asyncOp, timeout_ms)


def _all_gather_single_coalesced(group: Any, outputs: Any, inputs: Any, opts: Any) -> object:
    return torch.ops.c10d.allgather_into_tensor_coalesced_(outputs, inputs, group.boxed(), opts.asyncOp)


def _reduce_scatter_single_coalesced(group: Any, outputs: Any, inputs: Any, opts: Any) -> object:
    timeout_ms = opts.timeout // _MILLISECOND
    return torch.ops.c10d.reduce_scatter_tensor_coalesced_(
        outputs, inputs, group.boxed(), opts.reduceOp.boxed(), opts.asyncOp, timeout_ms
    )


METHODS: dict[str, Callable[..., object]] = {
    "all_gather_single_coalesced": _all_gather_single_coalesced,
    "all_to_all_single": _all_to_all_single,
    "reduce_scatter_single_coalesced": _reduce_scatter_single_coalesced,
    **{
        name: _inherited(name)
        for name in (
            *("all_gather_single", "allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced", "alltoall"),
            *("barrier", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter"),
            *("reduce_scatter_single", "scatter", "send"),
        )
    },
}
"""A process group's methods that torch dispatches to its Backend."""
