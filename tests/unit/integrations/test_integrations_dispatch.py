"""What of a group's calls goes by way of torch's dispatcher."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from integrations.torch_backend import dispatch
from integrations.torch_backend.c10d_methods import Methods


@pytest.mark.parametrize("method", dispatch.METHODS)
def test_a_method_of_the_dispatcher_is_one_of_torchs_and_of_ours(method: str) -> None:
    assert callable(getattr(Methods, method))
    assert callable(getattr(dist.ProcessGroup, method))


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("alltoall_base_", "output input process_group output_split_sizes input_split_sizes async_op timeout"),
        ("allgather_into_tensor_coalesced_", "outputs inputs process_group async_op"),
        ("reduce_scatter_tensor_coalesced_", "outputs inputs process_group reduce_op async_op timeout"),
    ],
)
def test_operations_that_are_called_by_name_take_what_they_get(operation: str, parameters: str) -> None:
    schema = getattr(torch.ops.c10d, operation).default._schema
    assert " ".join(argument.name for argument in schema.arguments) == parameters


def test_a_call_without_a_tensor_is_not_the_dispatchers() -> None:
    one = torch.ones(1)
    assert dispatch.takes("allreduce", [[one], None])
    assert dispatch.takes("gather", [[], [one], None])
    assert dispatch.takes("barrier", [None])
    assert not dispatch.takes("allreduce", [[], None])
    assert not dispatch.takes("monitored_barrier", [one])
