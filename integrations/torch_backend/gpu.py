"""What staging asks of a GPU: streams, events, pinned memory and copies. `Cuda` is torch's own.

Staging goes through these calls alone, so that its order can be tested where there is no GPU
(`tests/unit/integrations/lazy_gpu.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

_cuda: Any = torch.cuda  # its constructors have no types


class Event(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Block until all that was queued before it is done. The GIL is free meanwhile."""


class Stream(Protocol):
    """A queue of work on a GPU, done in order."""

    def record_event(self) -> Event:
        """An event behind all that is queued now."""

    def wait_event(self, event: Event) -> None:
        """Do what is queued from now on only after `event`."""


class Gpu(Protocol):
    """The GPUs of one device type."""

    def current_stream(self, device: torch.device) -> Stream:
        """The stream on which the calling thread queues its work."""

    def new_stream(self, device: torch.device) -> Stream:
        """A stream beside the callers'."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Contiguous page-locked host memory of a tensor's shape and dtype; its content is undefined."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queue a copy between pinned memory and a GPU, and keep both memories until it is done."""


class Cuda:
    """CUDA, and what torch calls by that name (ROCm)."""

    def current_stream(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return _cuda.Stream(device=device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        # torch keeps pinned memory by itself. The GPU's it would hand to the stream that allocated it at once.
        (target if target.is_cuda else source).record_stream(stream)


GPUS: dict[str, Gpu] = {"cuda": Cuda()}
"""By device type: what can be staged beside CPU tensors."""
