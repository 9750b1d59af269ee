r"""From DDP to DiLoCo in five lines: each says at its end what it replaces. One that is lost does not end the others.

    torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29400 \
        examples/ddp_to_diloco.py

torchrun's store is the register. Where the machine of that endpoint dies, torchrun ends all of them: a register of
`serve_register` and ranks without torchrun, as in volatile.py, outlive any machine but its own. Set HIVE_JOB_SECRET
to the same secret on all machines.
"""

from __future__ import annotations

import os
import sys

import torch
from torch.distributed import TCPStore

from integrations.volatile import DiLoCo, torch_register


def main() -> None:
    if "RANK" not in os.environ:
        sys.exit(__doc__)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    rank, size, host, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    store = TCPStore(host, int(port))  # dist.init_process_group("hive")
    algorithm = DiLoCo(model.parameters(), every=20)  # model = DistributedDataParallel(model)
    with algorithm.join(torch_register(store), name=f"rank-{rank}", members_min=int(size)) as group:  # (new)
        torch.manual_seed(int(rank))
        for step in range(200):
            inputs = torch.randn(32, 64)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            with algorithm.step():  # (new)
                optimizer.step()
            if step % 20 == 19:
                group.members_min = 1  # all began together; from here on the others go on without one that is lost
                count = len(group.view.members)
                print(f"rank {rank}, meeting {group.step} of {count}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
