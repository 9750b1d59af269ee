"""What is trained: byte transformers on the texts of this tree, and a convolutional network on data made from a seed.

Model and data depend on seed, step and rank alone, so that all algorithms see the same tokens in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tools.collectivesbench.programs.training import Batch, Task, generator_of, noisy_patterns
from tools.demo.model import ByteTransformer, sample_batch
from tools.volatilebench.settings import CONTEXT, WINDOWS

ROOT = Path(__file__).resolve().parents[3]
HELD_OUT = 0.1
"""Of the text, at its end: losses are of that part, and of windows that are the same for all."""
EVALUATED_BATCHES = 16
NOISE = 6.0
"""Of the patterns: after 400 steps a third of the loss is left, where that of two is gone, and of losses of nothing no
ratio says anything."""


@functools.cache
def corpus() -> torch.Tensor:
    """LICENSE and all pages below docs/, in the order of their names."""
    paths = [ROOT / "LICENSE", *sorted((ROOT / "docs").rglob("*.md"))]
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)), dtype=torch.uint8)


def _text(*, width: int, layers: int) -> Task:
    """A transformer of `layers` * 12 * width^2 parameters, and a little more."""
    text = corpus()
    seen = text[: int(len(text) * (1 - HELD_OUT))]

    def batch(generator: torch.Generator) -> Batch:
        return sample_batch(seen, batch=WINDOWS, context=CONTEXT, generator=generator)

    return Task(ByteTransformer(width=width, layers=layers, heads=4, context=CONTEXT), batch, 2e-3)


TASKS: Mapping[str, Callable[[int], Task]] = {
    "transformer": lambda _seed: _text(width=128, layers=5),  # 1.03 million
    "small transformer": lambda _seed: _text(width=64, layers=2),  # 0.12 million
    "conv net": functools.partial(noisy_patterns, noise=NOISE),
}


def task_of(name: str, seed: int) -> Task:
    """The task with the model that all begin with. Uses the process's own random numbers: one thread at a time."""
    torch.manual_seed(seed)
    return TASKS[name](seed)


def loss_of(task: Task, model: nn.Module, *, seed: int, step: int, rank: int) -> torch.Tensor:
    """The loss of a worker's batch in a step, of the task's model or of what wraps it."""
    inputs, targets = task.batch(generator_of(seed, step, rank))
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluated(name: str, task: Task, seed: int) -> float:
    """The loss on what no worker has trained on."""
    if name == "conv net":
        batches = [task.batch(generator_of(seed, -1 - place, 0)) for place in range(8 * EVALUATED_BATCHES)]
    else:
        text = corpus()
        held = text[int(len(text) * (1 - HELD_OUT)) :]
        source = torch.Generator().manual_seed(0)
        batches = [
            sample_batch(held, batch=WINDOWS, context=CONTEXT, generator=source) for _ in range(EVALUATED_BATCHES)
        ]
    losses = [functional.cross_entropy(task.model(one).flatten(0, -2), two.flatten()) for one, two in batches]
    return float(torch.stack(losses).mean())


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters, one after the other."""
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


@torch.no_grad()
def put(model: nn.Module, values: torch.Tensor) -> None:
    """Have the model hold such parameters."""
    place = 0
    for one in model.parameters():
        one.copy_(values[place : place + one.numel()].view_as(one))
        place += one.numel()
