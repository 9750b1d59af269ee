"""Tensors reach the transport as contiguous CPU memory, and received values reach the tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from lazy_gpu import BusyError, GpuTensor, LazyGpu, StuckError
from patience import wait_until

from hive_qos.errors import MisuseError
from integrations.torch_backend import staging
from integrations.torch_backend.gpu import GPUS, Cuda, Gpu
from integrations.torch_backend.staging import Staged, finish_all, until_all_ready


def test_a_contiguous_tensor_is_used_in_place() -> None:
    tensor = torch.arange(6.0)
    staged = Staged(tensor, read=True, write=True)
    assert staged.memory.data_ptr() == tensor.data_ptr()
    assert not staged.pending


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.arange(8, dtype=torch.int64).view(2, 2, 2).permute(2, 0, 1),
        torch.complex(torch.arange(4.0), torch.ones(4)).conj(),
    ],
    ids=["transposed", "strided", "permuted", "conjugated"],
)
def test_other_tensors_go_through_a_copy_and_come_back(tensor: torch.Tensor) -> None:
    staged = Staged(tensor, read=True, write=True)
    assert staged.memory.is_contiguous()
    assert not staged.memory.is_conj()
    assert torch.equal(staged.memory, tensor.resolve_conj())
    staged.memory.add_(1)
    finish_all([staged])
    assert torch.equal(tensor.resolve_conj(), staged.memory)


def test_a_tensor_that_is_only_read_is_never_written() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    before = tensor.clone()
    staged = Staged(tensor, read=True, write=False)
    staged.memory.zero_()
    finish_all([staged])
    assert torch.equal(tensor, before)


def test_a_parameter_that_requires_grad_is_written_without_autograd_noticing() -> None:
    tensor = torch.nn.Parameter(torch.zeros(4, 2))
    staged = Staged(tensor, read=True, write=True)
    staged.memory.fill_(3)
    finish_all([staged])
    assert tensor.detach().eq(3).all()
    assert tensor.grad_fn is None


def finished_elsewhere(staged: Staged) -> None:
    """Finish as an operation does, on a thread that is not the caller's; what it raises there is raised here."""
    with ThreadPoolExecutor(1) as other:
        other.submit(finish_all, [staged]).result()


def test_a_tensor_of_inference_mode_is_written_by_the_thread_that_finishes() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(4, 2).t()
        staged = Staged(tensor, read=True, write=True)
        staged.memory.fill_(3)
        finished_elsewhere(staged)
        assert tensor.eq(3).all()


def test_torchs_default_device_does_not_decide_where_tensors_are_staged() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    with torch.device("meta"):
        staged = Staged(tensor, read=True, write=True)
        assert staged.memory.device.type == "cpu"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_no_dimensions_and_no_elements_are_fine(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=torch.bfloat16)
    staged = Staged(tensor, read=True, write=True)
    assert staged.flat.numel() == tensor.numel()
    until_all_ready([staged])
    finish_all([staged])


def test_sparse_and_foreign_devices_are_refused_in_words() -> None:
    with pytest.raises(MisuseError, match="dense"):
        Staged(torch.eye(2).to_sparse(), read=True, write=True)
    with pytest.raises(MisuseError, match="meta"):
        Staged(torch.empty(2, device="meta"), read=True, write=True)


# GPU tensors: the order of their copies, on a GPU in memory that does everything as late as it may.


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> LazyGpu:
    lazy = LazyGpu()
    monkeypatch.setitem(GPUS, "cuda", lazy)
    monkeypatch.setattr(staging, "_streams", {})
    return lazy


def zeros() -> GpuTensor:
    return GpuTensor(torch.zeros(3))


def test_of_a_lazily_conjugated_gpu_tensor_the_values_are_sent(gpu: LazyGpu) -> None:
    conjugated = torch.complex(torch.arange(3.0), torch.ones(3)).conj()
    staged = Staged(GpuTensor(conjugated), read=True, write=False)
    staged.until_ready()
    assert torch.equal(staged.memory, conjugated.resolve_conj())


def test_a_gpu_tensor_of_inference_mode_is_written_by_the_thread_that_finishes(gpu: LazyGpu) -> None:
    with torch.inference_mode():
        tensor = zeros()
        assert tensor.is_inference()
        staged = Staged(tensor, read=False, write=True)
        staged.memory.fill_(3)
        finished_elsewhere(staged)
        assert tensor.values.eq(3).all()


def test_what_is_sent_are_the_values_that_the_callers_stream_was_still_to_compute(gpu: LazyGpu) -> None:
    tensor = zeros()
    gpu.caller.do(lambda: tensor.values.fill_(7))
    staged = Staged(tensor, read=True, write=False)
    assert staged.pending
    staged.until_ready()
    assert staged.memory.eq(7).all()


@pytest.mark.parametrize("read", [True, False], ids=["sent-as-well", "received-only"])
def test_what_was_queued_before_the_call_does_not_overwrite_what_is_received(gpu: LazyGpu, read: bool) -> None:
    tensor = zeros()
    gpu.caller.do(lambda: tensor.values.fill_(7))
    staged = Staged(tensor, read=read, write=True)
    staged.until_ready()
    staged.memory.fill_(3)
    finish_all([staged])
    assert tensor.values.eq(3).all()  # at once: no stream has to wait for anything
    gpu.finish_everything()
    assert tensor.values.eq(3).all()


def test_a_finished_bucket_does_not_wait_for_the_gradients_of_the_next(gpu: LazyGpu) -> None:
    first, second = zeros(), zeros()
    bucket = Staged(first, read=True, write=True)
    bucket.until_ready()
    computing = True

    def compute() -> None:
        if computing:
            raise StuckError
        second.values.fill_(5)

    gpu.caller.do(compute)
    following = [Staged(second, read=True, write=True), Staged(zeros(), read=False, write=True)]
    with pytest.raises(StuckError):
        following[0].until_ready()
    with pytest.raises(StuckError):
        finish_all(following[1:])
    bucket.memory.fill_(3)
    finish_all([bucket])
    assert first.values.eq(3).all()
    computing = False
    following[0].until_ready()
    assert following[0].memory.eq(5).all()


def test_waiting_for_a_gpu_that_is_never_so_far_ends_when_nobody_waits_any_more(gpu: LazyGpu) -> None:
    def hang() -> None:
        raise BusyError

    def check() -> None:
        raise StuckError

    gpu.caller.do(hang)
    staged = Staged(zeros(), read=True, write=True)
    staged.check = check
    with pytest.raises(StuckError):
        staged.until_ready()


def test_a_copy_back_that_was_begun_ends_before_anybody_is_told_of_an_error(gpu: LazyGpu) -> None:
    def hang() -> None:
        raise BusyError

    def check() -> None:
        raise StuckError

    first, second = zeros(), zeros()
    good = Staged(first, read=False, write=True)
    gpu.caller.do(hang)
    late = Staged(second, read=False, write=True)
    for one in (good, late):
        one.memory.fill_(3)
        one.check = check
    with pytest.raises(StuckError):
        finish_all([good, late])
    assert first.values.eq(3).all()


def test_a_large_tensor_is_there_piece_by_piece_and_the_first_does_not_wait_for_the_last(
    gpu: LazyGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 8)
    tensor = GpuTensor(torch.arange(5.0))
    staged = Staged(tensor, read=True, write=True)
    assert staged.in_pieces
    found = [(ready_bytes, staged.memory.tolist()) for ready_bytes in staged.arriving()]
    assert found == [
        (8, [0, 1, 99, 99, 99]),
        (16, [0, 1, 2, 3, 99]),
        (20, [0, 1, 2, 3, 4]),
    ]
    staged.memory.add_(1)
    finish_all([staged])
    assert tensor.values.tolist() == [1, 2, 3, 4, 5]


def test_what_nobody_waited_for_is_there_before_it_is_brought_back(
    gpu: LazyGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 8)
    tensor = GpuTensor(torch.arange(5.0))
    finish_all([Staged(tensor, read=True, write=True)])
    assert tensor.values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("elems", [2, 6], ids=["small", "not-contiguous"])
def test_what_is_small_or_not_contiguous_is_copied_at_once(
    gpu: LazyGpu, monkeypatch: pytest.MonkeyPatch, elems: int
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 8)
    values = torch.arange(float(elems))
    staged = Staged(GpuTensor(values if elems == 2 else values.view(2, 3).t()), read=True, write=False)
    assert not staged.in_pieces
    staged.until_ready()
    assert staged.memory.sum() == values.sum()


def test_a_gpu_tensor_that_is_only_read_is_never_written(gpu: LazyGpu) -> None:
    tensor = zeros()
    staged = Staged(tensor, read=True, write=False)
    staged.until_ready()
    staged.memory.fill_(3)
    finish_all([staged])
    gpu.finish_everything()
    assert tensor.values.eq(0).all()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; LazyGpu stands in for it")


@pytest.mark.parametrize("kind", [LazyGpu, pytest.param(Cuda, marks=needs_gpu)])
def test_a_gpu_does_a_streams_work_in_order_and_waits_for_events_of_others(kind: type[Any]) -> None:
    gpu: Gpu = kind()
    device = torch.device("cuda:0")
    values = torch.zeros(1 << 20)
    on_gpu = GpuTensor(values) if kind is LazyGpu else values.to(device)
    sources = [gpu.pinned(values).fill_(number) for number in (1, 2)]
    one, other = gpu.new_stream(device), gpu.new_stream(device)
    for source in sources:
        gpu.copy(on_gpu, source, one)
    other.wait_event(one.record_event())
    back = gpu.pinned(values)
    gpu.copy(back, on_gpu, other)
    done = other.record_event()
    wait_until(done.query)
    assert back.eq(2).all()


@needs_gpu
def test_a_gpu_tensor_goes_through_pinned_memory_and_back() -> None:
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    tensor.mul_(2)  # still running when the copy is queued behind it
    staged = Staged(tensor, read=True, write=True)
    assert staged.memory.is_pinned()
    assert staged.pending
    staged.until_ready()
    assert torch.equal(staged.memory, torch.arange(1 << 20, dtype=torch.float32) * 2)
    staged.memory.add_(1)
    finish_all([staged])
    assert torch.equal(tensor.cpu(), staged.memory)
