"""All-reduce of sparse (COO) tensors, as an embedding with `sparse=True` gives DDP: gather all entries, add them up.

Every rank sums the same entries in rank order, so that all hold the same bits. Ranks have different numbers of entries:
the counts are exchanged first, and the caller waits for those (8 bytes a rank), so that the operations after this one
keep their order on every rank. Then each rank broadcasts its indices and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import transport
from hive_qos.errors import MisuseError
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.work import HiveWork
from transport.collectives import calls


def allreduce(
    collectives: Collectives, tensors: Sequence[torch.Tensor], op: transport.ReduceOp, *, timeout_s: float | None = None
) -> HiveWork:
    """Sum one sparse CPU tensor over all ranks, in place.

    Raises:
        MisuseError: not a sum, several tensors, or not on the CPU.
    """
    if op is not transport.ReduceOp.SUM or len(tensors) != 1 or tensors[0].device.type != "cpu":
        raise MisuseError("a sparse all-reduce sums one tensor on the CPU")
    tensor = tensors[0]
    mine = tensor.detach().coalesce()
    group = collectives.group
    counts = torch.zeros(group.size, dtype=torch.int64)
    collectives.all_gather_single([counts], [torch.tensor([mine.values().shape[0]])], timeout_s=timeout_s).wait()

    entry_shape = mine.values().shape[1:]
    indices = [torch.empty((mine.sparse_dim(), int(count)), dtype=torch.int64) for count in counts]
    values = [torch.empty((int(count), *entry_shape), dtype=mine.dtype) for count in counts]
    indices[group.rank].copy_(mine.indices())
    values[group.rank].copy_(mine.values())

    prepared = [
        calls.broadcast(group.site, part[root], root) for root in range(group.size) for part in (indices, values)
    ]

    def add_up() -> None:
        total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), mine.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())

    return collectives.launch("sparse all-reduce", [], prepared, result=tensors, timeout_s=timeout_s, finish=add_up)
