"""Train over two sites: DDP inside each of them, Streaming DiLoCo over the slow link between them.

    python examples/volatile.py --store 10.0.0.1:29500 --serve      # the register; keep it running
    torchrun --nproc-per-node=2 examples/two_sites.py --store 10.0.0.1:29500 --site paris
    torchrun --nproc-per-node=2 examples/two_sites.py --store 10.0.0.1:29500 --site rome     # at the other one

The first rank of a site exchanges for all of it: a fragment of the model every few steps, in 4 bits, while all go on.
The sites make as many steps, and end with the same model.
Set HIVE_JOB_SECRET to the same secret for all of them.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from integrations.volatile import Site, StreamingDiLoCo, torch_register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="host:port of the register")
    parser.add_argument("--site", required=True, help="its name, unique in the job")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sites", type=int, default=2, help="exchange when so many are there")
    arguments = parser.parse_args()
    dist.init_process_group("hive")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    algorithm = Site(StreamingDiLoCo(model.parameters(), every=40, fragments=2, overlap=5))
    register = torch_register(arguments.store)
    held_out = torch.randn(1024, 64)
    with algorithm.join(register, name=arguments.site, members_min=arguments.sites):
        torch.seed()  # each rank has data of its own
        for step in range(arguments.steps):
            loss = loss_of(model, torch.randn(32, 64))
            optimizer.zero_grad()
            loss.backward()
            with algorithm.step(tokens=32 * dist.get_world_size()):
                optimizer.step()
            if step % 200 == 199 and dist.get_rank() == 0:
                print(f"{arguments.site}, step {step + 1}: loss {loss.item():.3f}", flush=True)
        algorithm.finish()
    print(f"{arguments.site} {dist.get_rank()} ends: loss {loss_of(model, held_out).item():.4f}", flush=True)
    dist.destroy_process_group()


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))


if __name__ == "__main__":
    main()
