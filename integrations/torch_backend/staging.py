"""Tensors as plain memory: CPU tensors in place, others through a contiguous copy, GPU ones through pinned memory.

A GPU tensor's copy to the host is queued behind the work that produces it, on a stream of its own, so that the caller
goes on; `until_ready` waits for it. The copy back is finished before anybody is told that the operation has ended, so
that whichever stream reads the tensor next finds it complete.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from hive_qos.errors import MisuseError

_cuda: Any = torch.cuda  # its constructors have no types


class Staged:
    """One tensor of an operation, and the contiguous CPU memory that the transport gets for it.

    Args:
        tensor: the caller's; strided, on the CPU or a GPU. It is kept alive.
        read: the transport reads it (it is sent).
        write: the transport writes it (it is received); `finish` brings that to `tensor`.
    """

    def __init__(self, tensor: torch.Tensor, *, read: bool, write: bool) -> None:
        if tensor.layout is not torch.strided:
            raise MisuseError(f"only dense tensors can be staged, not {tensor.layout}")
        self.tensor = tensor.detach()
        self._write = write
        self._copied: Any = None
        source = self.tensor
        plain = source.is_contiguous() and not source.is_conj() and not source.is_neg()
        if source.device.type == "cpu":
            if plain:
                self.memory = source
            else:
                self.memory = torch.empty(source.shape, dtype=source.dtype)
                if read:
                    self.memory.copy_(source)
        elif source.device.type == "cuda":
            self.memory = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            if read:
                self._copied = self._copy_to_host()
        else:
            raise MisuseError(f"the hive backend carries tensors of the CPU and of CUDA GPUs, not of {source.device}")

    @property
    def flat(self) -> torch.Tensor:
        """The memory as one dimension."""
        return self.memory.view(-1)

    @property
    def pending(self) -> bool:
        """Whether the copy to the host may still be under way."""
        return self._copied is not None

    def until_ready(self) -> None:
        """Block until the memory holds the tensor's values. The GIL is free meanwhile."""
        if self._copied is not None:
            self._copied.synchronize()

    def finish(self) -> None:
        """Bring what was received to the tensor, and return when it is there."""
        if not self._write or self.memory is self.tensor:
            return
        if self.tensor.device.type != "cuda":
            self.tensor.copy_(self.memory)
            return
        stream = _stream_of(self.tensor.device)
        with torch.cuda.stream(stream):
            self.tensor.copy_(self.memory, non_blocking=True)
        stream.synchronize()

    def _copy_to_host(self) -> Any:
        device = self.tensor.device
        stream = _stream_of(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self.memory.copy_(self.tensor, non_blocking=True)
            # The allocator must not hand the tensor's memory to the producer's stream before this copy has read it.
            self.tensor.record_stream(stream)
            copied: Any = _cuda.Event()
            copied.record(stream)
        return copied


def until_all_ready(staged: Sequence[Staged]) -> None:
    """Block until every one of them may be read."""
    for one in staged:
        one.until_ready()


def finish_all(staged: Sequence[Staged]) -> None:
    """Bring what was received to every tensor that was written."""
    for one in staged:
        one.finish()


_streams: dict[torch.device, Any] = {}
_streams_lock = threading.Lock()


def _stream_of(device: torch.device) -> Any:
    with _streams_lock:
        if device not in _streams:
            _streams[device] = _cuda.Stream(device=device)
        return _streams[device]
