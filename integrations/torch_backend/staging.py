"""Tensors as plain memory: CPU tensors in place, others through a contiguous copy, GPU ones through pinned memory.

The order of a GPU tensor's copies
- An event marks the end of what the caller's stream held at the call. Both copies come after it: a kernel that was
  queued before must not see, nor overwrite, what the operation brings.
- Copies to the host are queued at the call, and the caller goes on; `until_ready` waits for them.
- A large tensor is copied to the host in pieces, each with an event behind it. An operation begins with the first, and
  sends it while the next ones are copied (`transport.collectives.partial_input`).
- Copies back have a stream of their own: in one stream they would wait for the next bucket's, which waits for its
  gradients. The event is waited for by the finishing thread, so that one slow caller holds up nobody else's.
- The copy back is done before anybody is told that the operation has ended. Whichever stream reads next finds it.
- Waiting asks again and again. It ends with the group, or when the operation's time is over, and leaves the core to
  others: CUDA's own waiting does neither.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from hive_qos.errors import MisuseError
from integrations.torch_backend.gpu import GPUS, Event, Gpu, Stream
from transport.collectives.partial_input import PartialInput

PIECE_BYTES = 4 * 2**20
"""A third of a millisecond over PCI Express 3.0 x16 (12 GB/s): some ten times what it takes to begin a copy and to wait
for it, and a hundredth of what 1 Gbit/s takes for it."""

PAUSE_S_MIN, PAUSE_S_MAX = 20e-6, 1e-3
"""Between two questions whether a GPU is so far. The first is short beside a copy, the last beside a step."""


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
        self._copied: list[tuple[int, Event]] = []
        self.check: Callable[[], None] = _anybody_waits
        """Raises where nobody waits for the GPU any more."""
        source = self.tensor
        plain = source.is_contiguous() and not source.is_conj() and not source.is_neg()
        if source.device.type == "cpu":
            if plain:
                self.memory = source
            else:
                self.memory = torch.empty(source.shape, dtype=source.dtype, device="cpu")
                if read:
                    self.memory.copy_(source)
        elif (gpu := GPUS.get(source.device.type)) is not None:
            self._gpu = gpu
            if read:  # of one that is lazily conjugated torch would conjugate the host's copy before that has come
                # The copy of such a one is nobody else's: its memory must last until it has been read.
                self._source = source = source.resolve_conj().resolve_neg()
            self._called = gpu.current_stream(source.device).record_event()
            self.memory = gpu.pinned(source)
            if read:
                stream = _stream_of(gpu, source.device, _Way.TO_HOST)
                stream.wait_event(self._called)
                for target, piece in _pieces(self.memory, source):
                    gpu.copy(target, piece, stream)
                    before = self._copied[-1][0] if self._copied else 0
                    self._copied.append((before + target.nbytes, stream.record_event()))
        else:
            raise MisuseError(f"the hive backend carries tensors of the CPU and of CUDA GPUs, not of {source.device}")

    @property
    def flat(self) -> torch.Tensor:
        """The memory as one dimension."""
        return self.memory.view(-1)

    @property
    def pending(self) -> bool:
        """Whether the copy to the host may still be under way."""
        return bool(self._copied)

    @property
    def in_pieces(self) -> bool:
        """Whether the beginning may be in the memory before the rest."""
        return len(self._copied) > 1

    def until_ready(self) -> None:
        """Block until the memory holds the tensor's values."""
        for _ in self.arriving():
            pass

    def arriving(self) -> Iterator[int]:
        """Block until more of the memory holds the tensor's values, from its beginning; how many bytes do."""
        for ready_bytes, event in self._copied:
            _wait(event, self.check)
            yield ready_bytes

    @property
    def in_place(self) -> bool:
        """Whether what is received arrives in the tensor itself."""
        return not self._write or self.memory is self.tensor

    def bring_back(self) -> Event | None:
        """Bring what was received to the tensor. Returns what to wait for; None where it is there already."""
        if self.in_place:
            return None
        # The caller's thread may be in inference mode, and this one is not: torch lets nobody else write its tensors.
        with torch.inference_mode(self.tensor.is_inference()):
            if self._gpu is None:
                self.tensor.copy_(self.memory)
                return None
            self.until_ready()  # who is alone in a group has sent nothing, and waited for none of it
            _wait(self._called, self.check)
            stream = _stream_of(self._gpu, self.tensor.device, _Way.FROM_HOST)
            self._gpu.copy(self.tensor, self.memory, stream)
            return stream.record_event()


class InPieces:
    """The input of a collective that begins with the first of its pieces.

    Args:
        staged: what comes in pieces.
    """

    def __init__(self, staged: Staged) -> None:
        self.partial = PartialInput(staged.memory.data_ptr(), staged.memory.nbytes, ready_bytes=0)
        self._arriving = staged.arriving()

    def begin(self) -> None:
        """Block until the first piece is there."""
        self.partial.reached(next(self._arriving))

    def follow(self) -> None:
        """Tell the collective, which has begun, of one piece after the other, until all are there."""
        try:
            for ready_bytes in self._arriving:
                self.partial.reached(ready_bytes)
        except Exception as error:  # noqa: BLE001 - the GPU failed: the collective fails by it, here and on the others
            self.partial.failed(error)


def until_all_ready(staged: Sequence[Staged]) -> None:
    """Block until every one of them may be read."""
    for one in staged:
        one.until_ready()


def finish_all(staged: Sequence[Staged]) -> None:
    """Bring what was received to every tensor that was written, and return when it is there."""
    events: list[Event] = []
    try:
        for one in staged:
            if (event := one.bring_back()) is not None:
                events.append(event)
    finally:
        for event in events:  # whatever happens: until then the copy writes to the tensor
            _wait(event, _anybody_waits)


def _pieces(memory: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Host memory and what is copied to it, in pieces from the beginning; whole where it is not contiguous."""
    if source.nbytes <= PIECE_BYTES or not source.is_contiguous():
        return iter([(memory, source)])
    elems = PIECE_BYTES // source.element_size()
    return zip(torch.split(memory.view(-1), elems), torch.split(source.view(-1), elems), strict=True)


def _wait(event: Event, check: Callable[[], None]) -> None:
    """Block until the GPU is so far; raises what `check` does. The GIL is free meanwhile."""
    pause_s = PAUSE_S_MIN
    while not event.query():
        check()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _anybody_waits() -> None:
    return None


class _Way(enum.Enum):
    TO_HOST = enum.auto()
    FROM_HOST = enum.auto()


_streams: dict[tuple[torch.device, _Way], Stream] = {}


def _stream_of(gpu: Gpu, device: torch.device, way: _Way) -> Stream:
    """Ours for one way; the same for every thread, which `setdefault` sees to without a lock."""
    stream = _streams.get((device, way))
    return _streams.setdefault((device, way), gpu.new_stream(device)) if stream is None else stream
