"""Accelerate on CPUs, which takes a process group that exists.

torchrun --nproc-per-node=2 with_accelerate.py BACKEND OUTPUT
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    backend, output = sys.argv[1:]
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert dist.get_backend() == backend
    set_seed(3)
    inputs = torch.randn(66, 16)
    data = TensorDataset(inputs, inputs[:, :2].sin())
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 2))
    model, optimizer, loader = accelerator.prepare(
        layers, torch.optim.AdamW(layers.parameters(), lr=0.01), DataLoader(data, batch_size=8)
    )
    losses = []
    for _ in range(3):
        for batch, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(batch), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather_for_metrics(loss.detach()).mean())
    total = accelerator.reduce(torch.tensor(accelerator.process_index + 1.0), reduction="sum")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        weights = torch.cat([parameter.detach().flatten() for parameter in layers.parameters()])
        torch.save({"weights": weights, "loss": torch.stack(losses), "gathered": total}, output)
    accelerator.end_training()  # destroys the group as well


if __name__ == "__main__":
    main()
