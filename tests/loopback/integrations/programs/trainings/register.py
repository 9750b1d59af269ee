"""The register of trainings, and the model and data that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from ranks import DEVICE
from torch import nn

Function = Callable[[int, int], list[torch.Tensor]]


@dataclass(frozen=True)
class Training:
    """One training. `rounds`: its values over hive and over Gloo may differ by rounding."""

    name: str
    function: Function
    ranks: int
    rounds: bool


TRAININGS: dict[str, Training] = {}


def training(*, ranks: int, rounds: bool = False) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        TRAININGS[function.__name__] = Training(function.__name__, function, ranks, rounds or ranks > 2)
        return function

    return register


def network() -> nn.Module:
    """A few layers of several sizes, the same on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))


def batches(rank: int, count: int, rows: int = 6) -> list[torch.Tensor]:
    """A rank's own data."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(rows, 16, generator=generator, device="cpu").to(DEVICE) for _ in range(count)]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> None:
    """Train a step on each batch."""
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def values(model: nn.Module) -> list[torch.Tensor]:
    """Its parameters and buffers."""
    return [tensor.detach().clone() for tensor in chain(model.parameters(), model.buffers())]
