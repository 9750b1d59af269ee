"""Tensors of every kind and layout: viewed in place where they can be, packed and written back where not."""

from __future__ import annotations

import array
import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from hive_qos.errors import MisuseError
from transport.tensors import TensorView, split
from transport.wire.dtypes import ITEM_BYTES

TORCH_DTYPES = [name for name in ITEM_BYTES if hasattr(torch, name)]
NUMPY_DTYPES = [name for name in ITEM_BYTES if name == "bool" or hasattr(np, name)]


def fill(view: TensorView, value: int) -> None:
    view.data[:] = bytes([value]) * view.data.nbytes
    view.write_back()


@pytest.mark.parametrize("name", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_a_contiguous_array_is_used_in_place(name, shape):
    tensor = np.zeros(shape, dtype=name)
    view = TensorView.of(tensor, writable=True)
    assert (view.dtype, view.shape, view.data.nbytes) == (name, shape, tensor.nbytes)
    fill(view, 1)
    assert tensor.tobytes() == b"\1" * tensor.nbytes


@pytest.mark.filterwarnings("ignore:ComplexHalf")  # torch says so of its own making of one
@pytest.mark.parametrize("name", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_a_contiguous_torch_tensor_of_every_dtype_is_used_in_place(name, shape):
    tensor = torch.zeros(shape, dtype=getattr(torch, name))
    view = TensorView.of(tensor, writable=True)
    assert (view.dtype, view.shape, view.data.nbytes) == (name, shape, tensor.numel() * ITEM_BYTES[name])
    fill(view, 1)
    assert bytes(tensor.reshape(-1).view(torch.uint8).tolist()) == b"\1" * view.data.nbytes


@pytest.mark.parametrize(
    "cut",
    [
        lambda whole: whole[::2],
        lambda whole: whole.T,
        lambda whole: whole[1:3, 1:2],
        lambda whole: whole[:, 3],
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_is_not_contiguous_is_packed_and_written_back(kind, cut):
    whole = np.arange(48, dtype="i4").reshape(6, 8)
    tensor = cut(whole) if kind == "numpy" else cut(torch.from_numpy(whole))
    before = np.array(np.asarray(tensor))
    view = TensorView.of(tensor, writable=True)
    assert bytes(view.data) == before.tobytes()
    view.data[:] = (before + 100).tobytes()
    assert (np.asarray(tensor) == before).all()
    view.write_back()
    assert (np.asarray(tensor) == before + 100).all()
    assert (whole >= 100).sum() == before.size


def test_big_endian_arrays_travel_as_little_endian():
    tensor = np.array([1, 2], dtype=">i4")
    view = TensorView.of(tensor, writable=True)
    assert bytes(view.data) == np.array([1, 2], dtype="<i4").tobytes()
    view.data[:] = np.array([3, 4], dtype="<i4").tobytes()
    view.write_back()
    assert tensor.tolist() == [3, 4]


def test_a_lazily_conjugated_torch_tensor_is_sent_as_its_value_and_received_into():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    view = TensorView.of(tensor, writable=True)
    assert np.frombuffer(view.data, "c8").tolist() == [1 - 2j, 3 + 4j]
    view.data[:] = np.array([5j, 6], "c8").tobytes()
    view.write_back()
    assert tensor.resolve_conj().tolist() == [5j, 6]


def test_a_packed_tensor_of_inference_mode_is_received_into_on_the_transports_thread():
    with torch.inference_mode():
        tensor = torch.zeros(4, 4)[:, 0]
        view = TensorView.of(tensor, writable=True)
        view.data[:] = np.ones(4, "f4").tobytes()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(view.write_back).result()
        assert tensor.tolist() == [1, 1, 1, 1]


def test_a_parameter_that_requires_a_gradient_is_received_into():
    parameter = torch.nn.Parameter(torch.zeros(3))
    fill(TensorView.of(parameter, writable=True), 0)
    whole = torch.nn.Parameter(torch.zeros(4, 4))
    view = TensorView.of(whole[:, 0], writable=True)
    fill(view, 0)


def test_buffers_and_dlpack_objects():
    numbers = array.array("d", [1.0, 2.0])
    view = TensorView.of(numbers, writable=True)
    assert (view.dtype, view.shape) == ("float64", (2,))
    assert TensorView.of(b"abc", writable=False).dtype == "uint8"

    class OnlyDlpack:
        def __init__(self, inner: np.ndarray) -> None:
            self.inner = inner

        def __dlpack__(self, **options: Any) -> object:
            return self.inner.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.inner.__dlpack_device__()

    inner = np.arange(4, dtype="f4")
    assert bytes(TensorView.of(OnlyDlpack(inner), writable=False).data) == inner.tobytes()


def test_plain_memory_with_a_named_dtype():
    memory = bytearray(12)
    view = TensorView.from_memory(memory, dtype="bfloat16", shape=(2, 3))
    assert (view.elems, view.item_bytes, view.numpy().dtype) == (6, 2, np.uint16)
    assert TensorView.of(view, writable=True) is view
    fill(view, 7)
    assert memory == b"\7" * 12


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TensorView.of([1, 2], writable=False), "no tensor"),
        (lambda: TensorView.of(3.5, writable=False), "no tensor"),
        (lambda: TensorView.of(np.array(["a"]), writable=False), "cannot be sent"),
        (lambda: TensorView.of(np.array([None]), writable=False), "cannot be sent"),
        (lambda: TensorView.of(np.zeros(3, "M8[s]"), writable=False), "cannot be sent"),
        (lambda: TensorView.of(np.broadcast_to(np.zeros(1), 3), writable=True), "read-only"),
        (lambda: TensorView.of(b"abc", writable=True), "read-only"),
        (lambda: TensorView.of(torch.zeros(1).expand(3), writable=True), "expanded"),
        (lambda: TensorView.of(torch.zeros(3, 3).to_sparse(), writable=False), "cannot be sent"),
        (lambda: TensorView.of(torch.zeros(3, device="meta"), writable=False), "cannot be sent"),
        (lambda: TensorView.of(TensorView.from_memory(b"ab", dtype="uint8"), writable=True), "read-only"),
        (lambda: TensorView.from_memory(b"abc", dtype="float3"), "no dtype"),
        (lambda: TensorView.from_memory(b"abc", dtype="bfloat16"), "are not bfloat16"),
        (lambda: TensorView.from_memory(bytearray(4), dtype="int8", shape=(2, -2)), "are not int8"),
        (lambda: TensorView.from_memory(np.zeros((4, 4))[:, 0], dtype="float64"), "not contiguous"),
        (lambda: TensorView.from_memory(5, dtype="float64"), "not contiguous"),
        (lambda: split(TensorView.of(np.zeros(5), writable=False), 2), "5 elements"),
    ],
)
def test_what_is_no_tensor_is_said(make, text):
    with pytest.raises(MisuseError, match=text):
        make()


def test_a_view_keeps_its_tensor_alive():
    view = TensorView.of(torch.full((100_000,), 3.0), writable=False)
    for _ in range(20):
        torch.zeros(100_000)
    assert set(view.numpy().tolist()) == {3.0}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((1000, 300), 3.0),
        lambda: torch.full((300, 1000), 3.0).t(),
        lambda: np.full((1000, 300), 3.0),
        lambda: np.full((300, 1000), 3.0).T,
    ],
    ids=["torch", "torch packed", "numpy", "numpy packed"],
)
def test_a_slice_of_the_memory_alone_keeps_it_alive(make):
    """An engine holds nothing but the memoryview that it was given."""
    view = TensorView.of(make(), writable=False)
    item = np.dtype(view.dtype).type(3)
    half = view.data[view.data.nbytes // 2 :]
    del view
    gc.collect()
    others = [torch.zeros(1000, 300) for _ in range(8)]
    assert set(np.frombuffer(half, item.dtype).tolist()) == {3.0}
    del others


def test_the_memory_goes_when_the_last_slice_does():
    array = np.full(1000, 3.0, "f4")
    gone = weakref.ref(array)
    data = TensorView.of(torch.from_numpy(array), writable=False).data[:10]
    del array
    gc.collect()
    assert gone() is not None
    del data
    gc.collect()
    assert gone() is None


def test_importing_transport_does_not_import_torch_and_loads_no_engine():
    code = "import sys, transport; print([m for m in ('torch', 'aioquic', 'integrations') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "free",
    [
        lambda tensor: tensor.resize_(2**20),
        lambda tensor: tensor.untyped_storage().resize_(0),
        lambda tensor: tensor[2:].untyped_storage().resize_(0),
    ],
    ids=["resize_", "storage", "slice"],
)
def test_a_torch_tensor_that_was_resized_away_while_it_was_lent_is_found_out(free):
    tensor = torch.zeros(1000)
    view = TensorView.of(tensor, writable=True)
    view.require_in_place()
    view.write_back()
    free(tensor)
    for found_out in (view.require_in_place, view.write_back):
        with pytest.raises(MisuseError, match=r"float32\[1000\].* was freed while it was lent"):
            found_out()


def test_numpy_refuses_to_resize_what_is_lent_and_allows_it_afterwards():
    array = np.zeros(1000)
    view = TensorView.of(array, writable=False)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(2000)
    del view
    array.resize(2000)
    assert array.shape == (2000,)


def test_a_torch_tensor_may_be_resized_before_and_after_it_was_lent():
    tensor = torch.zeros(10)
    for size in (1000, 10, 0, 100):
        tensor.resize_(size)
        tensor.untyped_storage().resize_(4 * size)
        view = TensorView.of(tensor, writable=True)
        fill(view, 0)
        view.require_in_place()
