"""c10d's ways to call a method come out as one: with lists, and an options object."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hive_qos.errors import MisuseError
from integrations.torch_backend.overloads import Overloads

T = torch.ones(1)
REDUCE = Overloads(
    "reduce",
    ["tensors: [T], opts: ReduceOptions", "tensor: T, root: int, op: ReduceOp, timeout: timedelta"],
)
GATHER = Overloads(
    "gather",
    ["outputs: [[T]], inputs: [T], opts: GatherOptions", "outputs: [T], input: T, root: int, timeout: timedelta"],
)


def test_a_plain_form_becomes_lists_and_options() -> None:
    tensors, opts = REDUCE.arguments((T, 2), {"op": dist.ReduceOp.MAX, "timeout": timedelta(seconds=3)})
    assert tensors == [T]
    assert (opts.rootRank, opts.reduceOp, opts.timeout) == (2, dist.ReduceOp.MAX, timedelta(seconds=3))
    outputs, inputs, opts = GATHER.arguments(([T, T], T), {"root": 1})
    assert (outputs, inputs, opts.rootRank) == ([[T, T]], [T], 1)


def test_what_is_left_out_has_the_options_own_defaults() -> None:
    for args in (([T],), (T, 0)):
        opts = REDUCE.arguments(args, {})[-1]
        assert (opts.rootRank, opts.reduceOp) == (0, dist.ReduceOp.SUM)
        assert opts.timeout == dist.ReduceOptions().timeout


def test_the_form_with_options_passes_as_it_is() -> None:
    given: tuple[Any, ...] = ([], [T], dist.GatherOptions())
    assert all(ours is theirs for ours, theirs in zip(GATHER.arguments(given, {}), given, strict=True))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((T,), {}),
        ((T, 1.0), {}),
        ((T, 1), {"root": 1}),
        ((T, 1), {"bogus": 1}),
        ((T, 1, dist.ReduceOp.MAX, None, None), {}),
        (([T], None), {}),
        ((["x"],), {}),
        (("xx", 1), {}),
    ],
)
def test_what_fits_no_form_is_refused_with_all_forms(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=r"reduce\(\): incompatible arguments .* or reduce\(tensor: T, root: int"):
        REDUCE.arguments(args, kwargs)
