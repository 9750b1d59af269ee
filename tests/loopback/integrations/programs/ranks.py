"""Start ranks quickly: import torch once, then fork a process for every rank of every scenario, all at the same time.

    python ranks.py PROGRAM.py OUTPUT_DIRECTORY LIMIT_S SCENARIO:RANKS...

PROGRAM has a function for every scenario, called with (rank, world_size) after RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set. The store is served by a process of its own, so that it outlives every rank. Each rank's output is
OUTPUT_DIRECTORY/SCENARIO.RANK; exit codes come as JSON on standard output, -9 for those killed at the limit.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist

DEVICE = torch.device(os.environ.get("HIVE_TEST_DEVICE", "cpu"))
"""Where a rank's tensors lie."""

for _name in ("integrations.torch_backend.process_group", "transport.runtime", "transport.engine.aioquic.engine"):
    importlib.import_module(_name)  # once here, rather than in every rank


def main() -> None:
    program, output, limit_s, *scenarios = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    children: dict[int, tuple[str, int]] = {}
    stores: list[int] = []
    for scenario in scenarios:
        name, _, count = scenario.partition(":")
        store, port = serve_store(int(count))
        stores.append(store)
        for rank in range(int(count)):
            pid = os.fork()
            if pid == 0:
                be_rank(module, name, rank, int(count), port, Path(output) / f"{name}.{rank}")
            children[pid] = (name, rank)
    codes: dict[str, dict[int, int]] = {}
    give_up_s = time.monotonic() + float(limit_s)
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            name, rank = children.pop(pid)
            codes.setdefault(name, {})[rank] = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            if time.monotonic() > give_up_s:
                for left in children:
                    os.kill(left, signal.SIGKILL)
                give_up_s = float("inf")
            time.sleep(0.02)
    for store in stores:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    print(json.dumps(codes))


def serve_store(world_size: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        while True:
            time.sleep(60)
    os.close(writer)
    port = int(os.read(reader, 16))
    os.close(reader)
    return pid, port


def be_rank(module: object, name: str, rank: int, world_size: int, port: int, output: Path) -> None:
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        if DEVICE.type != "cpu":
            torch.set_default_device(DEVICE)  # of this process: a GPU that was used before the fork is lost to it
        getattr(module, name)(rank, world_size)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - ends the rank, as it would end a program
        traceback.print_exc()
    finally:
        # The way an ordinary program ends: what was registered for the end runs (destroying the group, for one).
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def report(**values: object) -> None:
    """Print one line that the test reads."""
    print("REPORT " + json.dumps(values), flush=True)


def connect(backend: str = "hive", **kwargs: object) -> None:
    """`init_process_group`, with a timeout that suits a test."""
    kwargs.setdefault("timeout", timedelta(seconds=60))
    dist.init_process_group(backend, **kwargs)


if __name__ == "__main__":
    main()
