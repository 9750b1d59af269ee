"""torch's dispatcher has the operations that a group's methods are, with the arguments that the methods have."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from integrations.torch_backend import dispatch
from integrations.torch_backend.c10d_methods import Methods


@pytest.mark.parametrize("method", dispatch.OPERATIONS)
def test_a_method_has_what_its_operation_takes(method: str) -> None:
    assert callable(getattr(Methods, method))
    assert callable(getattr(dist.ProcessGroup, method))
    _, parameters = dispatch._operation(method)
    own = [name for name in parameters if name != "process_group" and name not in dispatch._FROM_OPTIONS]
    assert parameters.count("process_group") == 1
    assert len(own) == {"send": 3, "recv": 3, "recv_anysource": 2, "all_to_all_single": 4}.get(
        method, 1 if method in ("allreduce", "allreduce_coalesced", "barrier", "broadcast", "reduce") else 2
    )


def test_a_call_without_a_tensor_is_not_the_dispatchers() -> None:
    one = torch.ones(1)
    assert dispatch.takes("allreduce", [[one], None])
    assert dispatch.takes("gather", [[], [one], None])
    assert dispatch.takes("barrier", [None])
    assert not dispatch.takes("allreduce", [[], None])
    assert not dispatch.takes("monitored_barrier", [one])
