"""A replica of one rank under torchft's manager, over hive: a line of JSON for each committed step, until SIGTERM.

python torchft_replica.py NAME LIGHTHOUSE
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torchft.manager import Manager

from integrations.volatile.torchft_group import ProcessGroupHive

LIMIT = timedelta(seconds=30)
PAUSE_S = 0.05
"""A step's computing: without any, the test would read thousands of lines."""


def main(name: str, lighthouse: str) -> None:
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    torch.manual_seed(sum(name.encode()))
    model = torch.nn.Linear(64, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupHive(timeout=LIMIT),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=name,
        hostname="127.0.0.1",
    )
    while not ends:
        manager.start_quorum()
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        for work in [manager.allreduce(one.grad) for one in model.parameters()]:
            work.wait()
        if manager.should_commit():
            optimizer.step()
            weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
            digest = hashlib.blake2b(weights).hexdigest()[:16]
            said = {"step": manager.current_step(), "replicas": manager.num_participants(), "digest": digest}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
        time.sleep(PAUSE_S)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
