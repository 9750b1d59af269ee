"""How the two trainers are started, one in each training host."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import BinaryIO

from tools.demo.settings import Settings
from tools.lab import Lab
from tools.measure.programs import environment, python

HOSTS = ("a", "b")
PORT = 29500


def start_trainer(
    lab: Lab, settings: Settings, rank: int, *, control: Path, corpus: Path, session_socket: str, log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start a rank's trainer; `session_socket` is its broker's, in every phase."""
    shape = ("width", "layers", "heads", "context", "batch", "compute_s")
    argv = python("tools.demo.trainer", "--control", str(control), "--corpus", str(corpus))
    argv += ["--backend", settings.backend, "--learning-rate", str(settings.learning_rate)]
    argv += [part for name in shape for part in (f"--{name.replace('_', '-')}", str(getattr(settings, name)))]
    node = lab[HOSTS[rank]]
    env = environment(
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(len(HOSTS)),
        MASTER_ADDR=lab[HOSTS[0]].address,
        MASTER_PORT=str(PORT),
        GLOO_SOCKET_IFNAME=node.interface,
        HIVE_INTERFACE=node.interface,
        HIVE_ENGINE=settings.engine,
        HIVE_JOB="demo",
        HIVE_JOB_SECRET="demo-only-secret-of-this-run",
        HIVE_BROKER=session_socket,
    )
    return node.popen(argv, user=settings.user, env=env, cwd="/", stdout=log, stderr=subprocess.STDOUT)
