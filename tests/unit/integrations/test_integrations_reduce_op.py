"""torch's reduce operations have the transport's meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hive_qos.errors import MisuseError
from integrations.torch_backend.reduce_op import reduction_of
from transport.collectives.reduce_op import ReduceOp


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (dist.ReduceOp.SUM, ReduceOp.SUM),
        (dist.ReduceOp.AVG, ReduceOp.MEAN),
        (dist.ReduceOp.PRODUCT, ReduceOp.PRODUCT),
        (dist.ReduceOp.MIN, ReduceOp.MIN),
        (dist.ReduceOp.MAX, ReduceOp.MAX),
        (dist.ReduceOp.BAND, ReduceOp.BAND),
        (dist.ReduceOp.BOR, ReduceOp.BOR),
        (dist.ReduceOp.BXOR, ReduceOp.BXOR),
    ],
)
def test_constants_and_options_map(theirs: object, ours: ReduceOp) -> None:
    assert reduction_of(theirs) == (ours, None)
    options = dist.AllreduceOptions()
    options.reduceOp = theirs  # type: ignore[assignment]
    assert reduction_of(options.reduceOp) == (ours, None)


def test_a_premultiplied_sum_is_a_sum_with_a_factor() -> None:
    assert reduction_of(dist._make_nccl_premul_sum(0.5)) == (ReduceOp.SUM, 0.5)  # type: ignore[attr-defined]
    op, factor = reduction_of(dist._make_nccl_premul_sum(torch.tensor([2.0])))  # type: ignore[attr-defined]
    assert op is ReduceOp.SUM
    assert isinstance(factor, torch.Tensor)
    assert factor.item() == 2.0


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(MisuseError, match="no such reduction"):
        reduction_of("median")
