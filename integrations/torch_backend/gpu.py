"""What staging asks of a GPU: streams, events, pinned memory and copies. `Cuda` is torch's own.

Staging goes through these calls alone, so that its order can be tested where there is no GPU
(`tests/unit/integrations/lazy_gpu.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from hive_qos.errors import MisuseError

_cuda: Any = torch.cuda  # its constructors have no types


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether all that was queued before it is done. Raises where the GPU has failed."""


class Stream(Protocol):
    """A queue of work on a GPU, done in order."""

    def record_event(self) -> Event:
        """An event behind all that is queued now."""

    def wait_event(self, event: Event) -> None:
        """Do what is queued from now on only after `event`."""


class Gpu(Protocol):
    """The GPUs of one device type."""

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        """Have the calling thread work with this GPU: CUDA makes a context on any other one that it asks (0.5 GB)."""

    def current_stream(self, device: torch.device) -> Stream:
        """The stream on which the calling thread queues its work.

        Raises:
            MisuseError: its work is recorded, to be done over and over, as nobody outside of the GPU can.
        """

    def new_stream(self, device: torch.device) -> Stream:
        """A stream beside the callers'."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Contiguous page-locked host memory of a tensor's shape and dtype; its content is undefined."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queue a copy between pinned memory and a GPU. Pinned memory stays until it is done; the caller keeps what it
        writes on the GPU. (Of that which it reads, what comes once it is gone is wanted by nobody.)"""


class Cuda:
    """CUDA, and what torch calls by that name (ROCm)."""

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        entered: AbstractContextManager[object] = _cuda.device(device)
        return entered

    def current_stream(self, device: torch.device) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise MisuseError("a CUDA graph cannot record what hive carries: end its capture before")
        return torch.cuda.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return _cuda.Stream(device=device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        # No `record_stream`: torch would abort the process where it frees such memory of a GPU that has failed.


GPUS: dict[str, Gpu] = {"cuda": Cuda()}
"""By device type: what can be staged beside CPU tensors."""


def working_with(devices: Sequence[torch.device]) -> AbstractContextManager[object]:
    """As `Gpu.current`, of the first of an operation's devices that is a GPU, if there is one."""
    return next((gpu.current(one) for one in devices if (gpu := GPUS.get(one.type))), nullcontext())
