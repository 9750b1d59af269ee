"""A torchrun script that saves each step and goes on from there after a restart.

    torchrun --nproc-per-node=2 --max-restarts=3 restart.py BACKEND OUTPUT [WHERE...]

Rank 1 kills itself once for each WHERE, in this order: the others wait for it in `init`, or in a `collective`.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def main() -> None:
    backend, output, *deaths = sys.argv[1:]
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    death = deaths[life] if rank == 1 and life < len(deaths) else ""
    begun = Path(f"{output}.begun")
    if death == "init":
        while not begun.exists():
            time.sleep(0.01)
        time.sleep(2.0)  # rank 0 finds the backend and begins to wait
        os.kill(os.getpid(), signal.SIGKILL)
    begun.touch()
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved = Path(f"{output}.saved")
    first = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    ddp = DistributedDataParallel(model)
    for step in range(first, STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        loss = ddp(torch.randn(8, 32, generator=generator)).square().mean()
        if death == "collective" and step == first + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, saved)
        dist.barrier()
    if rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        torch.save({"weights": weights}, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
