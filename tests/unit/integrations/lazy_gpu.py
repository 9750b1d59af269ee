"""A GPU in memory that does its work as late as it may: who forgets to wait reads or loses the wrong values.

Work is done only when somebody asks for an event, and then only what comes before that event. `finish_everything`
does the rest, as a real GPU does sooner or later.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class StuckError(Exception):
    """Somebody waits for work that cannot be done yet."""


class BusyError(Exception):
    """A stream is not so far: to be asked again."""


class GpuTensor(torch.Tensor):
    """A tensor that says it lies on `cuda:0`; its elements are `values`."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # the stub lacks it
            cls, values.shape, dtype=values.dtype, strides=values.stride(), device=torch.device("cuda:0")
        )
        made.values = values
        torch._C._set_conj(made, values.is_conj())
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.clone.default:
            return cls(args[0].values.resolve_conj())
        if func in (torch.ops.aten.view.default, torch.ops.aten.split.Tensor):
            found = func(args[0].values, *args[1:])
            return cls(found) if isinstance(found, torch.Tensor) else [cls(one) for one in found]
        raise NotImplementedError(f"{func} of a GPU tensor, outside of a stream")


class LazyEvent:
    def __init__(self, stream: LazyStream) -> None:
        self._stream = stream
        self.done = False

    def query(self) -> bool:
        with contextlib.suppress(BusyError):
            self.synchronize()
        return self.done

    def synchronize(self) -> None:
        while not self.done:
            self._stream.do_one()

    def pass_by(self) -> None:
        self.done = True


class LazyStream:
    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()

    def do(self, work: Callable[[], object]) -> None:
        """Queue some work; it raises `StuckError`, or `BusyError`, as long as it cannot be done."""
        self.queue.append(work)

    def do_one(self) -> None:
        self.queue[0]()
        self.queue.popleft()

    def record_event(self) -> LazyEvent:
        event = LazyEvent(self)
        self.do(event.pass_by)
        return event

    def wait_event(self, event: LazyEvent) -> None:
        self.do(event.synchronize)


class LazyGpu:
    """See the module. `caller` is the stream that is current."""

    def __init__(self) -> None:
        self.caller = LazyStream()
        self.streams = [self.caller]

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()

    def current_stream(self, device: torch.device) -> LazyStream:
        return self.caller

    def new_stream(self, device: torch.device) -> LazyStream:
        self.streams.append(LazyStream())
        return self.streams[-1]

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.full(tensor.shape, 99, dtype=tensor.dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: LazyStream) -> None:
        bits = _values(source).conj() if source.is_conj() else _values(source)  # as a copy that does not block has it
        mode = torch.is_inference_mode_enabled()  # torch looks at the call, not when the copy is made
        stream.do(lambda: _place(_values(target), bits, inference=mode))

    def finish_everything(self) -> None:
        for stream in self.streams:
            while stream.queue:
                stream.do_one()


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.values if isinstance(tensor, GpuTensor) else tensor


def _place(target: torch.Tensor, source: torch.Tensor, *, inference: bool) -> None:
    with torch.inference_mode(inference):
        target.copy_(source)
