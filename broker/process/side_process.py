"""A small program of ours beside the daemon: how it is started, ended, and started again after it has died.

The watchdog, the closer and the socket finder are such programs. Each runs as `python -P -m MODULE ARGUMENTS`. It has a
session of its own, so that a signal from the daemon's terminal does not reach it. It talks to the daemon over sockets
that it inherits, imports little, and writes nothing to standard output.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

READY_S_MAX = 15.0
"""A Python process starts in 0.1 to 0.2 s; on a machine that stands still now and then, in a few seconds."""
RESTART_S = 1.0
"""Between two starts: a Python process each second is what a host bears."""
END_S_MAX = 2.0
"""A program that was told to end does so within milliseconds. One that hangs is killed then."""


def python(module: str) -> tuple[str, ...]:
    """The command that runs a module of ours, whatever directory the daemon was started in."""
    return (sys.executable, "-P", "-m", module)


class SideProcess:
    """One program, and at most one process of it at a time. For one thread.

    Args:
        command: what is run, before its arguments.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = float("-inf")

    @property
    def pid(self) -> int | None:
        """Its process; None before the first start and after `end`."""
        return self._process.pid if self._process is not None else None

    @property
    def runs(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def may_start(self, *, now_s: float) -> bool:
        """Whether it does not run, and the last start was long enough ago."""
        return not self.runs and now_s - self._started_s >= RESTART_S

    def start(self, *arguments: object, descriptors: tuple[int, ...], now_s: float) -> None:
        """Start it; it inherits these descriptors under the same numbers.

        Raises:
            OSError: it cannot be started. That counts as a start for `may_start`.
        """
        self._started_s, self._process = now_s, None
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        self._process = subprocess.Popen(
            [*self._command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
        )

    def start_connected(self, *arguments: object, descriptors: tuple[int, ...] = (), now_s: float) -> socket.socket:
        """Start it with a SOCK_SEQPACKET to us as its first argument; returns our end, which the caller closes.

        Raises:
            OSError: as `start`.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its:
                self.start(its.fileno(), *arguments, descriptors=(its.fileno(), *descriptors), now_s=now_s)
        except BaseException:
            ours.close()
            raise
        return ours

    def kill(self) -> None:
        """Kill it, where it runs; `end` waits for that."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> bool:
        """Wait for it to end, and kill it after `END_S_MAX`. Returns whether it ended by itself and without an error.

        A killed process may still wait for a disk. Its end is not waited for longer than `END_S_MAX` either.
        """
        process, self._process = self._process, None
        if process is None:
            return False
        for _ in range(2):
            with suppress(subprocess.TimeoutExpired):
                return process.wait(END_S_MAX) == 0
            process.kill()
        return False
