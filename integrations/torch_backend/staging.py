"""Tensors as plain memory: CPU tensors in place, others through a contiguous copy, GPU ones through pinned memory.

The order of a GPU tensor's copies
- An event marks the end of what the caller's stream held at the call. Both copies come after it: a kernel that was
  queued before must not see, nor overwrite, what the operation brings.
- Copies to the host are queued at the call, and the caller goes on; `until_ready` waits for them.
- Copies back have a stream of their own: in one stream they would wait for the next bucket's, which waits for its
  gradients. The event is waited for by the finishing thread, so that one slow caller holds up nobody else's.
- The copy back is done before anybody is told that the operation has ended. Whichever stream reads next finds it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch

from hive_qos.errors import MisuseError
from integrations.torch_backend.gpu import GPUS, Event, Gpu, Stream


class Staged:
    """One tensor of an operation, and the contiguous CPU memory that the transport gets for it.

    Args:
        tensor: the caller's; strided, on the CPU or a GPU. It is kept alive.
        read: the transport reads it (it is sent).
        write: the transport writes it (it is received); `finish_all` brings that to `tensor`.
    """

    def __init__(self, tensor: torch.Tensor, *, read: bool, write: bool) -> None:
        if tensor.layout is not torch.strided:
            raise MisuseError(f"only dense tensors can be staged, not {tensor.layout}")
        self.tensor = tensor.detach()
        self._write = write
        self._gpu: Gpu | None = None
        self._copied: Event | None = None
        source = self.tensor
        plain = source.is_contiguous() and not source.is_conj() and not source.is_neg()
        if source.device.type == "cpu":
            if plain:
                self.memory = source
            else:
                self.memory = torch.empty(source.shape, dtype=source.dtype)
                if read:
                    self.memory.copy_(source)
        elif (gpu := GPUS.get(source.device.type)) is not None:
            self._gpu = gpu
            self._called = gpu.current_stream(source.device).record_event()
            self.memory = gpu.pinned(source)
            if read:
                stream = _stream_of(gpu, source.device, _Way.TO_HOST)
                stream.wait_event(self._called)
                gpu.copy(self.memory, source, stream)
                self._copied = stream.record_event()
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

    @property
    def in_place(self) -> bool:
        """Whether what is received arrives in the tensor itself."""
        return not self._write or self.memory is self.tensor

    def bring_back(self) -> Event | None:
        """Bring what was received to the tensor. Returns what to wait for; None where it is there already."""
        if self.in_place:
            return None
        if self._gpu is None:
            self.tensor.copy_(self.memory)
            return None
        self._called.synchronize()
        stream = _stream_of(self._gpu, self.tensor.device, _Way.FROM_HOST)
        self._gpu.copy(self.tensor, self.memory, stream)
        return stream.record_event()


def until_all_ready(staged: Sequence[Staged]) -> None:
    """Block until every one of them may be read."""
    for one in staged:
        one.until_ready()


def finish_all(staged: Sequence[Staged]) -> None:
    """Bring what was received to every tensor that was written, and return when it is there."""
    for event in [one.bring_back() for one in staged]:
        if event is not None:
            event.synchronize()


class _Way(enum.Enum):
    TO_HOST = enum.auto()
    FROM_HOST = enum.auto()


_streams: dict[tuple[torch.device, _Way], Stream] = {}


def _stream_of(gpu: Gpu, device: torch.device, way: _Way) -> Stream:
    """Ours for one way; the same for every thread, which `setdefault` sees to without a lock."""
    stream = _streams.get((device, way))
    return _streams.setdefault((device, way), gpu.new_stream(device)) if stream is None else stream
