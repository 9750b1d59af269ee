"""Lend a laptop for ten minutes: it joins a run that goes on, trains at its own pace, and leaves.

    python examples/volatile.py --store 10.0.0.1:29500 --serve                     # the register; keep it running
    python examples/laptop.py --store 10.0.0.1:29500 --name desk-1 --minutes 600   # machines that stay
    python examples/laptop.py --store 10.0.0.1:29500 --name laptop --minutes 10    # this one

Nobody waits for anybody's steps. What a member learns counts by how much it learned from, and how fast. Set
HIVE_JOB_SECRET to the same secret for all of them. Ctrl-C lets a member leave before its time, and so do SIGTERM and
`--leave-at 08:00`, wherever it is in a step. `hive-qos job` shows all members, and who is late.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import torch

from hive_qos.errors import ConfigurationError, HiveError
from integrations.volatile import AsyncDiLoCo, torch_register

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="host:port of the register")
    parser.add_argument("--name", required=True, help="of this member, unique in the job")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it stays")
    parser.add_argument("--leave-at", default="", help="the time of the day at which its owner comes, such as 08:00")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        until_s = time.monotonic() + 60.0 * arguments.minutes
        try:
            train(arguments.store, arguments.name, until_s=until_s, leave_at=arguments.leave_at)
        except ConfigurationError as error:
            parser.error(str(error))
        except HiveError as error:
            sys.exit(str(error))


def train(store: str, name: str, *, until_s: float, leave_at: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    algorithm = AsyncDiLoCo(model.parameters(), every=24, fragments=4)
    with algorithm.join(torch_register(store), name=name) as group:
        group.leave_on(at=leave_at)
        torch.seed()
        seen, loss = 0, torch.zeros(())
        while time.monotonic() < until_s:
            inputs = torch.randn(BATCH, 64)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            with algorithm.step(tokens=BATCH):
                optimizer.step()
            if group.step >= seen + 20:
                seen = group.step
                print(f"merge {seen} of {len(group.view.members)}: loss {loss.item():.3f}", flush=True)
        print(f"{name} leaves after merge {group.step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
