"""Start ranks quickly: import torch once, then fork a process for every rank of every scenario, all at the same time.

Each line of JSON on standard input is a request, served by a forked process of its own:

    {"program": "collectives.py", "output": DIRECTORY, "limit_s": 240, "scenarios": {"run": 3}, "environment": {}}

A program has a function for every scenario, called with (rank, world_size) after RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set. The store is served by a process of its own, so that it outlives every rank. Each rank's output is
DIRECTORY/SCENARIO.RANK; exit codes come as a line of JSON on standard output, -9 for those killed at the limit, and
null where a program cannot be loaded.
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
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

DEVICE = torch.device(os.environ.get("HIVE_TEST_DEVICE", "cpu"))
"""Where a rank's tensors lie, for programs: they import this module once their request's environment is set."""

for _name in ("integrations.torch_backend.process_group", "transport.runtime", "transport.engine.aioquic.engine"):
    importlib.import_module(_name)  # once here, rather than in every rank


def main() -> None:
    """Serve one request after the other until standard input ends."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                serve(json.loads(line))
                code = 0
            except BaseException:  # noqa: BLE001 - a child that returned would read the next request
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            print("null", flush=True)


def serve(request: dict[str, Any]) -> None:
    os.environ.update(request["environment"])
    spec = importlib.util.spec_from_file_location("program", Path(__file__).with_name(request["program"]))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    children: dict[int, tuple[str, int]] = {}
    stores: list[int] = []
    for name, count in request["scenarios"].items():
        store, port = serve_store(count)
        stores.append(store)
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                be_rank(module, name, rank, count, port, Path(request["output"]) / f"{name}.{rank}")
            children[pid] = (name, rank)
    codes: dict[str, dict[int, int]] = {}
    give_up_s = time.monotonic() + request["limit_s"]
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
    print(json.dumps(codes), flush=True)


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
        torch.set_num_threads(1)  # makes this process' pool of threads; two of its threads that need one at once crash
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        device = os.environ.get("HIVE_TEST_DEVICE", "cpu")
        if device != "cpu":
            torch.set_default_device(device)  # of this process: a GPU that was used before the fork is lost to it
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
