"""Tensors as contiguous bytes: whatever the caller holds, sent from and received into its own memory where possible.

Contiguous numpy arrays, torch tensors on the CPU and buffers are used in place. Everything else (strided, big-endian,
on a GPU, lazily conjugated) is packed into a contiguous copy, which `write_back` unpacks again after receiving.
torch is never imported: a torch tensor can only exist when its module is loaded already.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hive_qos.errors import MisuseError
from transport.wire.dtypes import ITEM_BYTES, item_bytes

DIMENSIONS_MAX = 32
"""numpy's own limit before 2.0, and the wire's."""

_NOT_NUMPY = frozenset(name for name in ITEM_BYTES if name.startswith(("bfloat", "float8")) or name == "complex32")


class TensorView:
    """A tensor's bytes with dtype and shape.

    `data` is a contiguous memoryview of format "B", little-endian; `write_back` must be called after writing to it. The
    memory lives as long as `data` or any slice of it, with the view or without: engines and schedules keep no more.

    Whoever resizes what was lent pulls that memory away. Python refuses it for a bytearray, numpy for an array; torch
    knows of no loans, nor does numpy with `refcheck=False`. Of a torch tensor `require_in_place` finds it out later.
    """

    __slots__ = ("_owner", "_place", "_unpack", "data", "dtype", "shape")

    def __init__(
        self,
        data: memoryview,
        *,
        dtype: str,
        shape: tuple[int, ...],
        owner: object = None,
        unpack: Callable[[], None] | None = None,
        place: Callable[[], int] | None = None,
    ) -> None:
        self.data = data
        self.dtype = dtype
        self.shape = shape
        self._owner = owner
        self._unpack = unpack
        self._place = None if place is None or not data.nbytes else (place, place())

    def __repr__(self) -> str:
        return f"<TensorView {self.dtype}{list(self.shape)}>"

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return item_bytes(self.dtype)

    @property
    def elems(self) -> int:
        """Number of elements; 1 for a zero-dimensional tensor."""
        return math.prod(self.shape)

    @property
    def numpy_has_dtype(self) -> bool:
        """Whether numpy knows its dtype; bfloat16, float8 and complex32 it does not."""
        return self.dtype not in _NOT_NUMPY

    @property
    def place(self) -> Callable[[], int] | None:
        """Where the memory lies now: what tells its address, for what may be resized while it is lent; else None."""
        return None if self._place is None else self._place[0]

    def require_in_place(self) -> None:
        """See that the tensor still lies where it did when it was lent.

        Raises:
            MisuseError: it does not. What it lay in was freed while it was read or written, which nobody can undo.
        """
        if self._place is not None and self._place[0]() != self._place[1]:
            raise MisuseError(
                f"the memory of a tensor ({self.dtype}{list(self.shape)}) was freed while it was lent (`resize_` of it "
                "or of its storage): resize before the operation or after it; what was sent or received is undefined, "
                "and so is whatever lies there now"
            )

    def write_back(self) -> None:
        """Copy what was received to where the tensor really lies. Does nothing where `data` is that place.

        Raises:
            MisuseError: the tensor was resized meanwhile.
        """
        self.require_in_place()
        if self._unpack is not None:
            self._unpack()

    def numpy(self) -> npt.NDArray[Any]:
        """The same memory as a numpy array; dtypes that numpy lacks come as unsigned integers of their size."""
        name = f"uint{8 * self.item_bytes}" if self.dtype in _NOT_NUMPY else self.dtype or "uint8"
        return np.frombuffer(self.data, dtype=name).reshape(self.shape)

    @classmethod
    def of(cls, tensor: object, *, writable: bool) -> TensorView:
        """View a tensor of any supported kind.

        Args:
            tensor: a `TensorView`, numpy array, torch tensor, or an object with DLPack or the buffer protocol.
            writable: it will be received into.

        Raises:
            MisuseError: no such kind or dtype, or read-only where it must be written.
        """
        if isinstance(tensor, TensorView):
            view = tensor
        elif isinstance(tensor, np.ndarray):
            view = _of_numpy(tensor, writable=writable)
        elif (torch := sys.modules.get("torch")) is not None and isinstance(tensor, torch.Tensor):
            view = _of_torch(tensor, writable=writable)
        elif hasattr(tensor, "__dlpack__"):
            view = _of_numpy(_from_dlpack(tensor), writable=writable)
        else:
            view = _of_numpy(_from_buffer(tensor), writable=writable)
        if writable and view.data.readonly:
            raise MisuseError("cannot receive into read-only memory")
        return view

    @classmethod
    def from_memory(cls, memory: object, *, dtype: str, shape: tuple[int, ...] | None = None) -> TensorView:
        """View plain memory as a tensor of a named dtype, for dtypes that its own type cannot express.

        Args:
            memory: contiguous, with the buffer protocol (bytes, bytearray, array, mmap, numpy array of any dtype).
            dtype: a name of `transport.wire.dtypes`, e.g. "bfloat16".
            shape: None for one dimension.

        Raises:
            MisuseError: no such dtype, not contiguous, or a size that does not match the shape.
        """
        if dtype not in ITEM_BYTES:
            raise MisuseError(f"no dtype {dtype!r}; there are {', '.join(sorted(ITEM_BYTES))}")
        try:
            raw = memoryview(memory)  # type: ignore[arg-type]  # that is what the except is for
            data = raw.cast("B") if raw.nbytes else memoryview(bytearray())
        except TypeError as error:
            raise MisuseError(f"not contiguous memory: {error}") from error
        dimensions = (data.nbytes // item_bytes(dtype),) if shape is None else tuple(shape)
        if min(dimensions, default=0) < 0 or math.prod(dimensions) * item_bytes(dtype) != data.nbytes:
            raise MisuseError(f"{data.nbytes} bytes are not {dtype}{list(dimensions)}")
        return cls(data, dtype=dtype, shape=dimensions, owner=memory)

    @classmethod
    def allocate(cls, *, dtype: str, shape: tuple[int, ...]) -> TensorView:
        """A new tensor in memory of its own; its content is undefined."""
        array = np.empty(math.prod(shape) * item_bytes(dtype), dtype=np.uint8)
        return cls(array.data, dtype=dtype, shape=shape)


def split(view: TensorView, parts: int) -> tuple[TensorView, ...]:
    """Cut a tensor into `parts` equal runs of elements, for the one-tensor forms of gather and scatter.

    Raises:
        MisuseError: its elements cannot be divided equally, or it had to be packed (nobody would unpack the parts).
    """
    if view.elems % parts:
        raise MisuseError(f"{view.elems} elements cannot be cut into {parts} equal parts")
    elems = view.elems // parts
    size = elems * view.item_bytes
    place = view.place
    return tuple(
        TensorView(view.data[i * size : (i + 1) * size], dtype=view.dtype, shape=(elems,), owner=view, place=place)
        for i in range(parts)
    )


def _of_numpy(array: npt.NDArray[Any], *, writable: bool) -> TensorView:
    name = array.dtype.name
    if name not in ITEM_BYTES or array.dtype.hasobject:
        raise MisuseError(f"tensors of dtype {array.dtype} cannot be sent")
    if array.ndim > DIMENSIONS_MAX:
        raise MisuseError(f"a tensor has at most {DIMENSIONS_MAX} dimensions, not {array.ndim}")
    if writable and not array.flags.writeable:
        raise MisuseError("cannot receive into a read-only array")
    if array.flags.c_contiguous and array.dtype.isnative == (sys.byteorder == "little"):
        return TensorView(_bytes_of(array), dtype=name, shape=array.shape, owner=array)
    packed = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
    if packed is array or np.shares_memory(packed, array):
        packed = packed.copy()

    def unpack() -> None:
        array[...] = packed

    return TensorView(_bytes_of(packed), dtype=name, shape=array.shape, owner=array, unpack=unpack)


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    if array.size == 0:
        return memoryview(bytearray())  # a memoryview of an empty array has no address to speak of
    return array.reshape(-1).view(np.uint8).data


def _of_torch(tensor: Any, *, writable: bool) -> TensorView:
    """View a torch tensor: through its address, because numpy lacks some of torch's dtypes."""
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEM_BYTES or tensor.layout != torch.strided or tensor.is_meta:
        raise MisuseError(f"tensors of dtype {tensor.dtype}, layout {tensor.layout} on {tensor.device} cannot be sent")
    shape = tuple(int(length) for length in tensor.shape)
    if len(shape) > DIMENSIONS_MAX:
        raise MisuseError(f"a tensor has at most {DIMENSIONS_MAX} dimensions, not {len(shape)}")
    source = tensor.detach()
    in_place = source.device.type == "cpu" and source.is_contiguous() and not source.is_conj() and not source.is_neg()
    if in_place:
        return TensorView(_bytes_at(source), dtype=name, shape=shape, owner=source, place=source.data_ptr)
    if writable and any(n > 1 and step == 0 for n, step in zip(shape, source.stride(), strict=True)):
        raise MisuseError("cannot receive into an expanded tensor: several elements share one place")
    memory = source.resolve_conj().resolve_neg().cpu().contiguous()
    if memory.data_ptr() == source.data_ptr():
        memory = memory.clone()

    def unpack() -> None:
        # The caller may be in inference mode, and this thread is not: torch lets nobody else write its tensors.
        with torch.inference_mode(source.is_inference()):
            source.copy_(memory)

    return TensorView(_bytes_at(memory), dtype=name, shape=shape, owner=memory, unpack=unpack)


def _bytes_at(tensor: Any) -> memoryview:
    """The memory of a contiguous torch tensor, which lives as long as the memoryview or any slice of it does.

    Unless the tensor is resized: the storage is held, and it is the storage that lets go of its memory then. torch has
    no way to forbid that for a time; `numpy()` forbids it for good, which those cannot have who resize between
    operations (FullyShardedDataParallel does).
    """
    if tensor.nbytes == 0:
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    array.owner = tensor  # the memoryview holds the array, and nothing else would hold the tensor
    return memoryview(array).cast("B")


def _from_dlpack(tensor: Any) -> npt.NDArray[Any]:
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise MisuseError(
            f"numpy cannot take this {type(tensor).__name__} through DLPack ({error}); use TensorView.from_memory"
        ) from error


def _from_buffer(tensor: object) -> npt.NDArray[Any]:
    try:
        return np.asarray(memoryview(tensor))  # type: ignore[arg-type]  # that is what the except is for
    except (TypeError, ValueError, NotImplementedError) as error:
        raise MisuseError(
            f"a {type(tensor).__name__} is no tensor: neither numpy, torch, DLPack nor the buffer protocol"
        ) from error
