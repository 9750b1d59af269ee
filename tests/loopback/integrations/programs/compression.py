"""A small network learns the same task with gradients as they are and compressed; what each sent, and where it came."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import transport

sys.path.insert(0, str(Path(__file__).parent))
from ranks import DEVICE, connect, report

from integrations.torch_backend.ddp_hook import CompressedGradients, compressed_allreduce

STEPS = 60
CODECS = ("bfloat16", "int8", "int4")
SHARDED = {
    "float32": {},
    "gradients": {"compression": "int8"},
    "both": {"compression": "int8", "gather_compression": "bfloat16"},
}


class Sent:
    """Payload bytes that the transport has sent and received for all collectives since this was made."""

    def __init__(self) -> None:
        self.works: list[transport.Work] = []
        start = transport.Group.start

        def counted(group: transport.Group, *args: Any, **arguments: Any) -> list[transport.Work]:
            works = start(group, *args, **arguments)
            self.works += works
            return works

        setattr(transport.Group, "start", counted)  # noqa: B010 - mypy takes no assignment to a method

    def take(self) -> int:
        works, self.works = self.works, []
        return sum(work.bytes_done for work in works)


def learned(rank: int, sent: Sent, group: Any, hook: str = "") -> dict[str, Any]:
    """Train; the loss of the last steps, the bytes of all steps but the first, and the parameters' digest."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    teacher = nn.Linear(64, 8)
    ddp = DistributedDataParallel(model, process_group=group)
    if hook:
        ddp.register_comm_hook(CompressedGradients(hook, group), compressed_allreduce)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(STEPS):
        batch = torch.randn(32, 64, generator=generator, device="cpu").to(DEVICE)
        loss = (ddp(batch) - teacher(batch).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            sent.take()
    of_steps = sent.take()  # before the loss is reduced
    total = torch.tensor(losses[-10:]).mean()
    dist.all_reduce(total, group=group)
    digest = hashlib.sha256(b"".join(one.detach().cpu().numpy().tobytes() for one in model.parameters())).hexdigest()
    elems = sum(one.numel() for one in model.parameters())
    return {"loss": total.item() / dist.get_world_size(group), "bytes": of_steps, "digest": digest, "elems": elems}


def by_hook(rank: int, size: int) -> None:
    """Without compression, and with each as a hook of DDP."""
    connect("hive")
    sent = Sent()
    report(found={codec: learned(rank, sent, dist.group.WORLD, hook=codec) for codec in ("", *CODECS)})
    dist.destroy_process_group()


def by_group(rank: int, size: int) -> None:
    """Without compression, and with one as an option of the group."""
    connect("hive")
    sent = Sent()
    found = {}
    for codec in ("", "int8"):
        group = dist.new_group(list(range(size)), pg_options={"compression": codec} if codec else None)
        found[codec] = learned(rank, sent, group)
    report(found=found)
    dist.destroy_process_group()


def learned_sharded(rank: int, group: Any) -> dict[str, Any]:
    """Train with FSDP2; the loss of the last steps, and the digest of the parameters as all ranks gather them."""
    mesh = DeviceMesh.from_group(group, DEVICE.type)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8))
    teacher = nn.Linear(64, 8)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS // 2):
        batch = torch.randn(32, 64, generator=generator, device="cpu").to(DEVICE)
        loss = (model(batch) - teacher(batch).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = torch.tensor(losses[-10:]).mean()
    dist.all_reduce(total)
    parameters: list[Any] = list(model.parameters())  # DTensors
    whole = [one.full_tensor().detach().cpu().numpy().tobytes() for one in parameters]
    return {"loss": total.item() / dist.get_world_size(), "digest": hashlib.sha256(b"".join(whole)).hexdigest()}


def sharded(rank: int, size: int) -> None:
    """FSDP2 without compression, with that of gradients, and with that of parameters too; what each sent."""
    connect("hive")
    sent = Sent()
    found = {}
    for name, options in SHARDED.items():
        group = dist.new_group(list(range(size)), pg_options=options)
        sent.take()
        found[name] = {**learned_sharded(rank, group), "bytes": sent.take()}
    report(found=found)
    dist.destroy_process_group()


def refused(rank: int, size: int) -> None:
    """What is no compression, and ranks that want different ones."""
    connect("hive")
    texts = []
    for options in ({"compression": "int7"}, {"compression": 8}):
        try:
            dist.new_group(list(range(size)), pg_options=options)
        except RuntimeError as error:
            texts.append(str(error))
    group: Any = dist.new_group(list(range(size)), pg_options={"compression": ["int8", "int4"][rank]})
    try:
        dist.all_reduce(torch.ones(100_000), group=group)
    except RuntimeError as error:
        texts.append(str(error))
    report(texts=texts)
    dist.barrier()
    dist.destroy_process_group()
