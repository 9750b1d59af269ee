"""A Lightning Trainer with DDP, and Fabric after it.

torchrun --nproc-per-node=2 with_lightning.py BACKEND OUTPUT
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import lightning
import torch
from lightning.fabric.strategies.ddp import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

Module: Any = lightning.LightningModule  # which may be missing where types are checked


class Regression(Module):
    """A small model that logs averages over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 2))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    backend, output = sys.argv[1:]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(3)
    inputs = torch.randn(64, 16)
    data = TensorDataset(inputs, inputs[:, :2].sin())
    model = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=8))
    loss = trainer.callback_metrics["loss"]
    assert torch.distributed.get_backend() == backend

    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=FabricDDPStrategy(process_group_backend=backend))
    fabric.launch()
    wrapped, optimizer = fabric.setup(model.layers, torch.optim.SGD(model.layers.parameters(), lr=0.1))
    for inputs, targets in fabric.setup_dataloaders(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(wrapped(inputs), targets))
        optimizer.step()
    gathered = fabric.all_gather(torch.tensor([float(fabric.global_rank)]))
    fabric.barrier()
    if fabric.global_rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        torch.save({"weights": weights, "loss": loss, "gathered": gathered}, output)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
