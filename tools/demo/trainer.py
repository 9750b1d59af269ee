"""The training program of one host: plain DistributedDataParallel, told over a Unix socket how far it may go.

Everything about training is what any script does: `init_process_group(backend)`, `DistributedDataParallel(model)`,
forward, backward, step. The process group and the model live through every phase of the demonstration. The controller
grants steps ("go on until step 40"); both ranks get the same grants, which only grow, so that they always agree on how
many steps there are. Records go out over the same socket, one JSON line a step.

    controller -> trainer   {"until": 40}          run steps below 40, then wait
                            {"finish": true}       hash the weights, say so, end
    trainer -> controller   {"hello": {...}}, {"step": {...}}, {"done": {...}}

Times are CLOCK_MONOTONIC, which network namespaces of one machine share. The end of the socket ends the trainer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tools.demo.model import ByteTransformer, sample_batch
from tools.demo.settings import TRIAL_BATCH, batch_for
from tools.measure.grants import ControllerGoneError, Grants
from transport.engine import find_engine

CALIBRATION_STEPS = 6
"""Steps without communication, before training, that say how long computing alone takes."""


@dataclass
class Training:
    """Model, optimizer and data of one rank; `run` does one step."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    corpus: torch.Tensor
    generator: torch.Generator
    batch: int
    context: int

    def forward_and_backward(self) -> tuple[float, float]:
        """Do both on a fresh batch; backward ends when the gradients are the mean over all ranks.

        Returns:
            This rank's loss, and the seconds of the forward pass.
        """
        begin = time.monotonic()
        text, following = sample_batch(self.corpus, batch=self.batch, context=self.context, generator=self.generator)
        logits = self.model(text)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        forward_s = time.monotonic() - begin
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(loss.detach()), forward_s

    def time_computing_s(self) -> list[float]:
        """Seconds of some steps that communicate nothing; leaves weights and optimizer as they were."""
        seconds = []
        for _ in range(CALIBRATION_STEPS):
            begin = time.monotonic()
            with self.model.no_sync():
                self.forward_and_backward()
            seconds.append(time.monotonic() - begin)
            self.optimizer.zero_grad(set_to_none=True)
        return seconds

    def choose_batch(self, compute_s: float) -> None:
        """Take as many texts as compute in `compute_s`: the same number on every rank, from the mean of their times.

        Each one's least time counts: what other programs take of the processor meanwhile would make the batch smaller.
        """
        trial_s = torch.tensor([min(self.time_computing_s())])
        dist.all_reduce(trial_s)
        self.batch = batch_for(compute_s=compute_s, trial_s=float(trial_s) / dist.get_world_size())

    def run(self) -> dict[str, object]:
        """Do one step and say what it took."""
        cpu_s = time.process_time()
        begin_s = time.monotonic()
        loss, forward_s = self.forward_and_backward()
        backward_end_s = time.monotonic()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        end_s = time.monotonic()
        return {
            "start_s": begin_s,
            "end_s": end_s,
            "step_s": end_s - begin_s,
            "forward_s": forward_s,
            "backward_s": backward_end_s - begin_s - forward_s,
            "optimizer_s": end_s - backward_end_s,
            "cpu_s": time.process_time() - cpu_s,
            "loss": loss,
        }


def weights_sha256(model: torch.nn.Module) -> str:
    """Hash every parameter's bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def build(options: argparse.Namespace, rank: int) -> Training:
    """Make model, optimizer and data of this rank: same weights everywhere, other windows of the text."""
    torch.manual_seed(1)
    model = ByteTransformer(width=options.width, layers=options.layers, heads=options.heads, context=options.context)
    ddp = DistributedDataParallel(model)
    return Training(
        model=ddp,
        optimizer=torch.optim.AdamW(ddp.parameters(), lr=options.learning_rate),
        corpus=torch.from_numpy(np.fromfile(Path(options.corpus), dtype=np.uint8)),
        generator=torch.Generator().manual_seed(1000 + rank),
        batch=options.batch or TRIAL_BATCH,
        context=options.context,
    )


def train(options: argparse.Namespace) -> None:
    """Join the group, train as far as the controller grants, hash the weights."""
    rank = int(os.environ["RANK"])
    grants = Grants(options.control)
    dist.init_process_group(options.backend)
    try:
        training = build(options, rank)
        if not options.batch:
            training.choose_batch(options.compute_s)
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        grants.say(
            "hello",
            {
                "rank": rank,
                "pid": os.getpid(),
                "parameters": parameters,
                "gradient_bytes": 4 * parameters,
                "batch": training.batch,
                "compute_s": statistics.median(training.time_computing_s()),
                "torch": torch.__version__,
                "engine": find_engine(os.environ["HIVE_ENGINE"]).name if options.backend == "hive" else None,
            },
        )
        for record in _steps(training, grants):
            grants.say("step", {"rank": rank, **record})
        grants.say("done", {"rank": rank, "weights_sha256": weights_sha256(training.model.module)})
    finally:
        dist.destroy_process_group()


def _steps(training: Training, grants: Grants) -> Iterator[dict[str, object]]:
    step = 0
    while grants.may_run(step):
        yield {"step": step, **training.run()}
        step += 1


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of the demonstration's training.")
    parser.add_argument("--control", required=True, help="Unix socket of the controller")
    parser.add_argument("--corpus", required=True, help="file with the text")
    parser.add_argument("--backend", default="hive")
    for name, value in (("width", 96), ("layers", 2), ("heads", 4), ("context", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, default=6, help="texts of a step; 0: as many as --compute-s says")
    parser.add_argument("--compute-s", type=float, default=0.04, help="computing of a step where the batch is 0")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    try:
        train(options)
    except ControllerGoneError:
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
