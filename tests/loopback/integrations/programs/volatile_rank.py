"""A member of a volatile group that trains a small model: a line of JSON for each meeting, until SIGTERM."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys

import torch
from torch._C._distributed_c10d import TCPStore

from hive_qos.errors import HiveError
from integrations.volatile.diloco import DiLoCo
from integrations.volatile.torch_store import TorchStore
from transport.settings import Settings
from transport.volatile.register.register import Register


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(name: str, port: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    torch.manual_seed(sum(name.encode()))
    algorithm = DiLoCo(model.parameters(), every=2)
    register = Register(TorchStore(TCPStore("127.0.0.1", int(port))), job="test", secret=b"0123456789abcdef")
    settings = Settings(listen="127.0.0.1", broker="off", tape=os.environ.get("HIVE_TAPE", ""))
    try:
        with algorithm.join(register, name=name, settings=settings) as group:
            tell(joined=group.step)
            while not ends:
                torch.nn.functional.mse_loss(model(torch.randn(8, 64)), torch.randn(8, 1)).backward()
                before = algorithm.last
                with algorithm.step(), torch.no_grad():  # an optimiser of torch's takes seconds to import
                    for one in model.parameters():
                        assert one.grad is not None
                        one.sub_(one.grad, alpha=1e-3)
                        one.grad = None
                met = algorithm.last
                if met is not None and met is not before and not met.applied:
                    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
                    members = [one.name for one in met.members]
                    tell(step=met.step, members=members, digest=hashlib.blake2b(weights).hexdigest()[:16])
    except HiveError as error:
        tell(error=error.code)
        return 1
    tell(left=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
