"""Tensors reach the transport as contiguous CPU memory, and received values reach the tensors."""

from __future__ import annotations

import pytest
import torch

from hive_qos.errors import MisuseError
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
    staged.finish()
    assert torch.equal(tensor.resolve_conj(), staged.memory)


def test_a_tensor_that_is_only_read_is_never_written() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    before = tensor.clone()
    staged = Staged(tensor, read=True, write=False)
    staged.memory.zero_()
    staged.finish()
    assert torch.equal(tensor, before)


def test_a_parameter_that_requires_grad_is_written_without_autograd_noticing() -> None:
    tensor = torch.nn.Parameter(torch.zeros(4, 2))
    staged = Staged(tensor, read=True, write=True)
    staged.memory.fill_(3)
    staged.finish()
    assert tensor.detach().eq(3).all()
    assert tensor.grad_fn is None


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the CPU tests cover the rest of this file")
def test_a_gpu_tensor_goes_through_pinned_memory_and_back() -> None:
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    tensor.mul_(2)  # still running when the copy is queued behind it
    staged = Staged(tensor, read=True, write=True)
    assert staged.memory.is_pinned()
    assert staged.pending
    staged.until_ready()
    assert torch.equal(staged.memory, torch.arange(1 << 20, dtype=torch.float32) * 2)
    staged.memory.add_(1)
    staged.finish()
    assert torch.equal(tensor.cpu(), staged.memory)
