"""Train with whoever is there: start it on as many machines as you like, whenever you like, and stop any of them.

    python examples/volatile.py --store 10.0.0.1:29500 --serve          # the register; keep it running
    python examples/volatile.py --store 10.0.0.1:29500 --name desk-1    # a member, on any machine
    python examples/volatile.py --store 10.0.0.1:29500 --name desk-2

Set HIVE_JOB_SECRET to the same secret for all of them. Ctrl-C lets a member leave; the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import time

import torch
from torch.distributed import TCPStore

from integrations.volatile import DiLoCo, torch_register


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True, help="host:port of the register")
    parser.add_argument("--serve", action="store_true", help="be the register")
    parser.add_argument("--name", default="alone", help="of this member, unique in the job")
    parser.add_argument("--meetings", type=int, default=100, help="train until the group has met so often")
    arguments = parser.parse_args()
    host, _, port = arguments.store.rpartition(":")
    store = TCPStore(host, int(port), is_master=arguments.serve, wait_for_workers=False)
    with contextlib.suppress(KeyboardInterrupt):
        while arguments.serve:
            time.sleep(1.0)
        train(store, arguments.name, arguments.meetings)


def train(store: TCPStore, name: str, meetings: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    algorithm = DiLoCo(model.parameters(), every=20)
    with algorithm.join(torch_register(store), name=name) as group:
        while group.step < meetings:
            inputs = torch.randn(32, 64)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            inner.zero_grad()
            loss.backward()
            before = group.step
            with algorithm.step():
                inner.step()
            if group.step > before:
                print(f"meeting {group.step} of {len(group.view.members)}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
