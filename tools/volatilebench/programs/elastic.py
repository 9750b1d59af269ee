"""A worker of torchrun: DDP over Gloo with a checkpoint each few steps, from which all begin after a restart."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tools.volatilebench.programs import tasks

START = datetime.timedelta(seconds=60)
"""Until all have loaded torch."""
TIMEOUT = datetime.timedelta(seconds=10)
"""Of an all-reduce, and so until a peer that is cut off is noticed: a step takes a fraction of a second."""
CHECKPOINT = "checkpoint.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker of torchrun.")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and records: the same for all")
    parser.add_argument("--task", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between two checkpoints")
    parser.add_argument("--step-s", type=float, required=True, help="what a step takes, mostly asleep")
    parser.add_argument("--name", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=START)
    train(options)


def train(options: argparse.Namespace) -> None:
    """Train until somebody is lost or comes: then this process ends, and torchrun starts another one."""
    rank, world, checkpoint = dist.get_rank(), dist.get_world_size(), options.folder / CHECKPOINT
    task = tasks.task_of(options.task, options.seed)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.learning_rate)
    step = 0
    if checkpoint.exists():
        held = torch.load(checkpoint, weights_only=True)
        step = held["step"]
        task.model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
    dist.barrier()  # nobody trains, and so nobody replaces the checkpoint, before all have read it
    model = DistributedDataParallel(task.model, process_group=dist.new_group(timeout=TIMEOUT))
    with (options.folder / f"{options.name}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"joined": True, "t_s": time.monotonic(), "world": world}) + "\n")
        out.flush()
        while True:
            step_end_s = time.monotonic() + options.step_s
            loss = tasks.loss_of(task, model, seed=options.seed, step=step + 1, rank=rank)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            time.sleep(max(0.0, step_end_s - time.monotonic()))
            optimizer.step()
            step += 1
            if rank == 0 and step % options.every == 0:
                held = {"step": step, "model": task.model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(held, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
                out.write(json.dumps({"t_s": time.monotonic(), "step": step, "world": world}) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
