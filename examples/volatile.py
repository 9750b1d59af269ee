"""Train with whoever is there: start it on as many machines as you like, whenever you like, and stop any of them.

    python examples/volatile.py --store 10.0.0.1:29500 --serve          # the register; keep it running
    python examples/volatile.py --store 10.0.0.1:29500 --name desk-1    # a member, on any machine
    python examples/volatile.py --store 10.0.0.1:29500 --name desk-2

Training begins when there are two. Set HIVE_JOB_SECRET to the same secret for all of them. Ctrl-C and SIGTERM
let a member leave; the others go on. `hive-qos job --watch` on any of the machines shows who is late, and why.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

import torch

from hive_qos.errors import ConfigurationError, HiveError
from integrations.volatile import DiLoCo, serve_register, torch_register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="host:port of the register")
    parser.add_argument("--serve", action="store_true", help="be the register")
    parser.add_argument("--name", default="alone", help="of this member, unique in the job")
    parser.add_argument("--members", type=int, default=2, help="meet when so many are there")
    parser.add_argument("--meetings", type=int, default=1000, help="train until the group has met so often")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            if arguments.serve:
                serve(arguments.store)
            else:
                train(arguments.store, arguments.name, members=arguments.members, meetings=arguments.meetings)
        except ConfigurationError as error:
            parser.error(str(error))
        except HiveError as error:
            sys.exit(str(error))


def serve(address: str) -> None:
    store = serve_register(address)
    print(f"the register listens at port {store.port} of all addresses here, until Ctrl-C", flush=True)
    signal.pause()


def train(store: str, name: str, *, members: int, meetings: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.seed()  # each member has data of its own
    algorithm = DiLoCo(model.parameters(), every=20)
    with algorithm.join(torch_register(store), name=name, members_min=members) as group:
        group.leave_on(signal.SIGTERM)
        print(f"{name} has joined after meeting {group.step}: {len(group.view.members)} of {members}", flush=True)
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
        print(f"{name} leaves: the group has met {group.step} times", flush=True)


if __name__ == "__main__":
    main()
