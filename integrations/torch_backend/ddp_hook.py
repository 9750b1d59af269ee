"""Compressed gradients in DistributedDataParallel, with error feedback: a communication hook of its.

    model = DistributedDataParallel(model)
    model.register_comm_hook(CompressedGradients("int8"), compressed_allreduce)

Unlike torch's own hooks that quantise, it sends what an all-reduce sends, not what an all-gather does. All ranks hold
the same bits.
"""
# Without `from __future__ import annotations`: torch compares the hook's annotations with its types.

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

import transport
from hive_qos.errors import MisuseError
from integrations.torch_backend.backend import DEVICES
from integrations.torch_backend.collectives import Collectives
from transport.collectives.calls import Compression
from transport.collectives.codecs import Codec
from transport.collectives.error_feedback import ErrorFeedback


class CompressedGradients:
    """The hook's state: one for each model, as large as its gradients.

    Args:
        compression: "bfloat16", "int8" or "int4", the same on every rank.
        process_group: the model's, of hive; None for the default one.

    Raises:
        MisuseError: there is no such compression, or the group is not of hive.
    """

    def __init__(self, compression: str, process_group: dist.ProcessGroup | None = None) -> None:
        group = dist.group.WORLD if process_group is None else process_group
        if group is None:
            raise MisuseError("compressed gradients need a process group of hive, and there is none")
        self._backend = _backend_of(group)
        self._codec = Codec.named(compression)
        self._kept = ErrorFeedback()

    def allreduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean of a bucket's gradients over all ranks."""
        # DDP forms its buckets anew after the first step: what they owe goes with the parameters, not with a number.
        key = tuple(parameter.data_ptr() for parameter in bucket.parameters())
        compression = Compression(self._codec, self._kept, key)
        collectives: Collectives = self._backend.collectives  # of now: its ranks may change
        work = collectives.allreduce([bucket.buffer()], transport.ReduceOp.MEAN, compression=compression)
        future: Any = work.get_future()
        mean: torch.futures.Future[torch.Tensor] = future.then(lambda ended: ended.value()[0])
        return mean


def _backend_of(group: dist.ProcessGroup) -> Any:
    """Hive's in a process group, which may have others for other devices."""
    for device in DEVICES:
        with contextlib.suppress(RuntimeError):  # there is none for that device
            backend = group._get_backend(device)
            if hasattr(backend, "collectives"):
                return backend
    raise MisuseError("compressed gradients need a process group of hive")


def compressed_allreduce(state: CompressedGradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What `register_comm_hook` takes."""
    return state.allreduce(bucket)
