"""The examples run as their own descriptions say."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_all(commands: list[list[str]]) -> list[str]:
    environment = os.environ | {
        "HIVE_LISTEN": "127.0.0.1",
        "HIVE_BROKER": "off",
        "HIVE_JOB_SECRET": "secret of the test",
    }
    processes = [
        subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for command in commands
    ]
    try:
        results = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors.decode()
        assert errors == b""
    return [output.decode() for output, _ in results]


def free_port() -> int:
    """Below the ports that the kernel gives to whoever asks for any, so that nobody takes it meanwhile."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def test_two_scripts_send_each_other_tensors():
    port = free_port()
    program = str(EXAMPLES / "send_tensors.py")
    meet = f"127.0.0.1:{port}"
    outputs = run_all([[program, "--rank", str(rank), "--meet", meet, "--mib", "1"] for rank in (1, 0)])
    assert re.search(r"rank 1: 1 MiB of 1 each way in", outputs[0])
    assert "rank 1: int64 (2, 3), sum 15" in outputs[0]
    assert "rank 0: int64 (2, 3), sum 30" in outputs[1]


def test_an_address_that_is_none_is_refused_in_a_line_of_usage():
    command = [sys.executable, str(EXAMPLES / "send_tensors.py"), "--rank", "0", "--meet", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: [configuration] rendezvous = 'nonsense': write \"host:port\"" in done.stderr


def test_the_allreduce_example_takes_the_mean(tmp_path):
    program = str(EXAMPLES / "allreduce.py")
    outputs = run_all(
        [[program, "--rank", str(rank), "--world-size", "3", "--meet", str(tmp_path / "meet")] for rank in range(3)]
    )
    assert outputs == [f"rank {rank}: [1.0, 2.0, 3.0, 4.0]\n" for rank in range(3)]
