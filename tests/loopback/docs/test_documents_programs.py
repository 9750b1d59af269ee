"""The programs that the documents show run as they stand there, with addresses of this machine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from broker_support import Running
from documents import DOCS, fences_of
from patience import LIMIT_S, wait_until
from torch._C._distributed_c10d import TCPStore

import transport
from hive_qos.errors import ConnectionLostError
from integrations.torch_backend.errors import as_torch_error

RANKS = 4


def shown(page: str, first: str) -> str:
    """The Python example of a page that begins with this line."""
    found = [one.text for one in fences_of(DOCS / page) if one.language == "python" and one.text.startswith(first)]
    assert len(found) == 1, f"{page} has {len(found)} examples that begin with {first!r}"
    return found[0]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HIVE_LISTEN", "127.0.0.1"),
        ("HIVE_BROKER", "off"),
        ("HIVE_JOB_SECRET", "secret of the test"),
    ):
        monkeypatch.setenv(name, value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("alone")
def test_the_group_of_the_reference_takes_the_mean_on_every_rank() -> None:
    text = shown("reference/transport.md", "import numpy as np").replace("10.0.0.1:29400", f"127.0.0.1:{free_port()}")

    def rank(number: int) -> Any:
        names: dict[str, Any] = {"rank": number}
        exec(compile(text.replace("np.ones(1_000_000", "(1 + rank) * np.ones(1_000"), "example", "exec"), names)
        return names["gradients"]

    with ThreadPoolExecutor(RANKS) as pool:
        results = [one.result(LIMIT_S) for one in [pool.submit(rank, number) for number in range(RANKS)]]
    assert [(result.min(), result.max()) for result in results] == [(2.5, 2.5)] * RANKS


@pytest.mark.usefixtures("alone")
def test_the_group_of_the_reference_works_with_asyncio() -> None:
    program = compile(
        shown("reference/transport.md", "async with"), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    rendezvous = transport.MemoryRendezvous()

    async def run() -> list[Any]:
        ranks = [
            {"transport": transport, "rendezvous": rendezvous, "rank": rank, "gradients": np.full(9, float(rank))}
            for rank in range(RANKS)
        ]
        begun = [eval(program, names) for names in ranks]
        assert all(inspect.iscoroutine(one) for one in begun)
        await asyncio.gather(*begun)
        return [names["gradients"] for names in ranks]

    assert [result.tolist() for result in asyncio.run(run())] == [[1.5] * 9] * RANKS


def test_the_training_script_of_the_page_runs_under_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    text = shown("train.md", "import torch\n").replace(
        "for batch, target in batches:",
        "batches = [(torch.ones(4, 512), torch.zeros(4, 512))] * 3\nfor batch, target in batches:",
    )
    said = "import sys\nsys.stdout.write(f'trained {len(batches)} steps over {backend}\\n')\n"  # whole, by one write
    text = text.replace("dist.destroy_process_group()", "backend = dist.get_backend()\ndist.destroy_process_group()")
    program.write_text(text + said)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-addr=127.0.0.1", str(program)]
    done = subprocess.run(command, env=ranks_environment(), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 3 steps over hive\n" * 2


def ranks_environment() -> dict[str, str]:
    root = str(DOCS.parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIVE_", "TORCH", "MASTER_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "HIVE_BROKER": "off", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": root}


def test_the_error_handler_of_the_page_saves_when_a_rank_is_lost() -> None:
    saved: list[bool] = []

    def train_one_epoch() -> None:
        raise RuntimeError(str(as_torch_error(ConnectionLostError("node-2", "no acknowledgement for 2 s", rank=2))))

    names = {"train_one_epoch": train_one_epoch, "save_and_leave": lambda: saved.append(True)}
    with pytest.raises(RuntimeError, match="lost rank 2"):
        exec(shown("train.md", "try:"), names)
    assert saved == [True]


def test_the_loop_over_members_that_come_and_go_meets_after_a_hundred_steps(alone: None) -> None:
    model, served = torch.nn.Linear(8, 1), TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names: dict[str, Any] = {
        "model": model,
        "loss": torch.nn.functional.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [(torch.ones(4, 8), torch.zeros(4, 1))] * 100,
    }
    text = shown("train.md", "from integrations.volatile import")
    for shown_there, here in (('"10.0.0.1:29500"', f'"127.0.0.1:{served.port}"'), ("members_min=2", "members_min=1")):
        assert shown_there in text
        text = text.replace(shown_there, here)
    exec(text, names)
    assert names["algorithm"].last.step == 1


def test_the_session_of_the_storage_page_registers_and_declares(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_BROKER", running.sessions)
    seen = SimpleNamespace(needs=[], rejections=None)
    text = shown("store.md", "from broker.client")
    marker = "    # Copy."
    assert text.count(marker) == 1
    before, after = text.split(marker)
    text = before + "    look(session)\n" + marker + after

    def look(session: Any) -> None:
        wait_until(lambda: session.flows)
        seen.needs = wait_until(lambda: running.status()["needs"])
        seen.rejections = session.rejections

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        exec(textwrap.dedent(text), {"sock": sock, "look": look})
    (need,) = seen.needs
    assert 0 < need["backlog_bytes"] <= 50_000_000_000
    assert need["replicas_at_risk"] == 12
    assert seen.rejections == ()
    wait_until(lambda: running.status()["needs"] == [])


def test_the_session_of_the_reference_is_accepted_by_a_broker(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_BROKER", running.sessions)
    text = shown("reference/broker-api.md", "from broker.client")
    closing = "session.close()\n"
    assert text.endswith(closing)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        names: dict[str, Any] = {"sock": sock}
        exec(text.removesuffix(closing), names)
        session = names["session"]
        wait_until(lambda: session.flows)
        (need,) = wait_until(lambda: running.status()["needs"])
        exec(closing, names)
    assert need["backlog_bytes"] == 50_000_000_000
    assert session.rejections == ()
