"""Where a side runs: on this machine's loopback, or in a host of the lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tools.lab import Host

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """An address and a way to start a program there; `host` is None on this machine's loopback."""

    name: str
    address: str
    interface: str
    host: Host | None = None

    def popen(
        self, argv: Sequence[str], *, log: BinaryIO | int, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, with pipes for its input and output, its errors in `log`."""
        env = {**_environment(), **(env or {})}
        if self.host is not None:
            return self.host.popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        return subprocess.Popen(
            list(argv),
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def loopback(name: str) -> Place:
    """This machine, over 127.0.0.1."""
    return Place(name, "127.0.0.1", "lo")


def of_host(host: Host) -> Place:
    """A host of a lab that is up."""
    return Place(host.name, host.address, host.interface, host)


def python(module: str, *arguments: str) -> list[str]:
    """Command line of one of our programs, with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def _environment() -> dict[str, str]:
    return {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HIVE_BROKER": "off",  # a broker of this machine is not what is measured
    }
