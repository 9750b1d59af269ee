"""What the ranks train: two small models on data made from a seed, under torch's DistributedDataParallel.

Both tasks are easy enough for some thirty steps and large enough that gradients take as long as computing behind
100 Mbit/s: a transformer (0.4 million parameters) learns a Markov chain, a convolutional network (0.3 million) learns
noisy patterns. Model and data depend on seed, step and rank alone, so that all contenders follow the same loss curve
up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

TOKENS, CONTEXT, WIDTH, SUCCESSORS = 32, 32, 128, 2
CLASSES, PIXELS, CHANNELS, NOISE = 8, 16, 64, 2.0
SMOOTHED_STEPS = 5
"""A loss counts as reached when the mean of so many steps is there: a single batch may be lucky."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, and its data.

    Args:
        model: of the seeded generator.
        batch: inputs and targets of a generator, that of seed, step and rank.
        learning_rate: of AdamW.
    """

    model: nn.Module
    batch: Callable[[torch.Generator], Batch]
    learning_rate: float


class Transformer(nn.Module):
    """Two layers over a context; gives logits (batch, CONTEXT, TOKENS)."""

    def __init__(self) -> None:
        super().__init__()
        self._token, self._place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self._layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self._out = nn.Linear(WIDTH, TOKENS)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("_mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each next token."""
        hidden = self._token(tokens) + self._place(torch.arange(CONTEXT))
        logits: Tensor = self._out(self._layers(hidden, mask=self._mask, is_causal=True))
        return logits


def markov_chain(seed: int) -> Task:
    """Each token has two successors, equally likely: the loss ends at ln 2 = 0.69."""
    successors = torch.randint(TOKENS, (TOKENS, SUCCESSORS), generator=torch.Generator().manual_seed(seed))

    def batch(generator: torch.Generator) -> Batch:
        tokens = [torch.randint(TOKENS, (8,), generator=generator)]
        for _ in range(CONTEXT):
            turn = torch.randint(SUCCESSORS, (8,), generator=generator)
            tokens.append(successors[tokens[-1], turn])
        chain = torch.stack(tokens, dim=1)
        return chain[:, :-1], chain[:, 1:]

    return Task(Transformer(), batch, 3e-3)


def noisy_patterns(seed: int, *, noise: float = NOISE) -> Task:
    """Each class is a pattern of its own under normal noise of so many times its deviation."""
    patterns = torch.randn(CLASSES, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(seed))

    def batch(generator: torch.Generator) -> Batch:
        labels = torch.randint(CLASSES, (8,), generator=generator)
        blur = torch.randn(8, 3, PIXELS, PIXELS, generator=generator)
        return patterns[labels] + noise * blur, labels

    model = nn.Sequential(
        nn.Conv2d(3, CHANNELS // 2, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(CHANNELS // 2, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(CHANNELS * PIXELS * PIXELS // 4, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )
    return Task(model, batch, 1e-3)


TASKS: Mapping[str, Callable[[int], Task]] = {"transformer": markov_chain, "conv net": noisy_patterns}


def train(order: Mapping[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
    """Train from scratch until the loss is reached, the steps are done or the time is over, on all ranks alike.

    Args:
        order: `task`, `seed`, `loss` to reach, `steps_max`, `seconds_max` by rank 0's clock.
        begun: called before the barrier behind which time counts, when the model is there.

    Returns:
        begin_s, the curve as [end of the step on the machine's monotonic clock, mean loss of all ranks], whether the
        loss was reached, and the bytes of gradients in a step.
    """
    rank, seed = dist.get_rank(), int(order["seed"])
    torch.manual_seed(seed)
    task = TASKS[order["task"]](seed)
    model = DistributedDataParallel(task.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate)
    curve: list[tuple[float, float]] = []
    begun()
    dist.barrier()
    begin_s = time.monotonic()
    reached = over = False
    while not reached and not over and len(curve) < order["steps_max"]:
        inputs, targets = task.batch(generator_of(seed, len(curve), rank))
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        late = rank == 0 and time.monotonic() - begin_s > order["seconds_max"]
        shared = torch.tensor([loss.item(), float(late)])
        dist.all_reduce(shared)
        curve.append((time.monotonic(), shared[0].item() / dist.get_world_size()))
        recent = [loss for _, loss in curve[-SMOOTHED_STEPS:]]
        reached = len(recent) == SMOOTHED_STEPS and sum(recent) / SMOOTHED_STEPS <= order["loss"]
        over = bool(shared[1])
    gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    return {"begin_s": begin_s, "curve": curve, "reached": reached, "gradient_bytes": gradient_bytes}


def generator_of(seed: int, step: int, rank: int) -> torch.Generator:
    """Of a rank's batch in a step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
