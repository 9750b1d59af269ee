"""Storage that copies real files with rsync over TCP: a daemon on the target, and a load that never ends by itself.

    python -m tools.demo.storage serve --directory DIR --address 10.0.3.2
    python -m tools.demo.storage copy --source DIR --url rsync://10.0.3.2:8730/sink

Both run as the ordinary user who starts them. The load copies the whole source into a fresh destination, again and
again, uncompressed; the daemon empties the destination before each copy, so that the disk stays bounded by one copy.
Both end, with every rsync, when their standard input ends: no orphan outlives the controller.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PORT = 8730
"""Not 873: the daemon has no privilege."""

DROP_DESTINATION = 'case "$RSYNC_REQUEST" in sink/copy/) rm -rf -- "$RSYNC_MODULE_PATH/${RSYNC_REQUEST#sink/}";; esac'
"""Run by the daemon's shell before each transfer (rsyncd.conf(5) documents both variables): the destination is fresh.
The pattern matters: a request for the module itself must not empty it."""

NICENESS = 10
"""Of rsync, at both ends and in every phase: training computes first, and yet a busy machine does not stop storage. A
core's tenth is left to it then, and it needs a twentieth."""

POLL_S = 0.1
FAILURES_MAX = 5
"""Copies that may fail in a row before the load gives up, with rsync's own words."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_REAP_S_MAX = 2.0


def daemon_configuration(directory: Path, *, address: str) -> str:
    """Write an rsyncd.conf for one writable module, `sink`, without chroot and without changing user."""
    return "\n".join(
        [
            f"address = {address}",
            f"port = {PORT}",
            "use chroot = false",
            "max connections = 32",
            f"pid file = {directory}/rsyncd.pid",
            f"log file = {directory}/rsyncd.log",
            f"lock file = {directory}/rsyncd.lock",
            "reverse lookup = no",
            "[sink]",
            f"path = {directory}/sink",
            f"pre-xfer exec = {DROP_DESTINATION}",
            "read only = false",
            "list = false",
            "munge symlinks = no",
            "",
        ]
    )


def write_source(target: Path, *, size_bytes: int) -> int:
    """Copy real, hard to compress files (the interpreter's shared objects and bytecode) until there are enough.

    The load is read from memory after its first turn; a copy, so that the ordinary user may read it.

    Returns:
        Bytes copied.
    """
    target.mkdir(parents=True, exist_ok=True)
    copied = 0
    roots = [Path(entry) for entry in sys.path if entry.endswith("-packages")] + [Path(os.__file__).parent]
    for root in roots:
        for path in sorted(root.rglob("*.so")) + sorted(root.rglob("*.py")):
            size = path.stat().st_size
            if 20_000 <= size <= size_bytes // 2 and copied + size <= size_bytes:
                shutil.copyfile(path, target / f"{copied:012d}-{path.name}")
                copied += size
        if copied >= size_bytes * 0.9:
            break
    return copied


def serve(*, directory: Path, address: str) -> int:
    """Run rsync's daemon until standard input ends.

    Returns:
        0, or the daemon's exit status when it ended first.
    """
    _give_way()
    (directory / "sink").mkdir(parents=True, exist_ok=True)
    configuration = directory / "rsyncd.conf"
    configuration.write_text(daemon_configuration(directory, address=address))
    argv = ["rsync", "--daemon", "--no-detach", f"--config={configuration}"]
    if os.getuid() == 0:
        # Root of a user namespace that holds nobody else: rsync would change user and cannot. One level down it is
        # not root, and owns the same files.
        argv = ["unshare", "--user", "--", *argv]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the daemon forks and leaves is ours to wait for
    daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        while daemon.poll() is None:
            if _input_ended(POLL_S):
                return 0
        return daemon.returncode or 1
    finally:
        _end(daemon)
        _reap()


def copy(*, source: Path, url: str) -> int:
    """Keep an rsync copying until standard input ends.

    Returns:
        0, or rsync's exit status when copies kept failing.
    """
    _give_way()
    argv = ["rsync", "-r", "--whole-file", "--inplace", f"{source}/", f"{url}/copy/"]
    process: subprocess.Popen[bytes] | None = None
    failures = 0
    try:
        while not _input_ended(POLL_S if process is not None else 0.0):
            status = process.poll() if process is not None else 0
            if status is None:
                continue
            failures = failures + 1 if status else 0
            if failures > FAILURES_MAX:
                return status
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
        return 0
    finally:
        if process is not None:
            _end(process)


def _input_ended(wait_s: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def _give_way() -> None:
    """Take the CPU last. Kernels that schedule by session (autogroup) heed a nice value only within the session.

    As a batch program (sched(7)) it also waits until who computes has had his turn, instead of taking his core whenever
    a frame has come: training's threads are put off half as often.
    """
    os.nice(NICENESS)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):  # no autogroups here: then the nice value is what counts
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _reap() -> None:
    """Wait for the connections' processes, which end when their sockets do."""
    end_s = time.monotonic() + _REAP_S_MAX
    while time.monotonic() < end_s:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="The demonstration's storage.")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    server.add_argument("--directory", type=Path, required=True)
    server.add_argument("--address", required=True)
    client = commands.add_parser("copy")
    client.add_argument("--source", type=Path, required=True)
    client.add_argument("--url", required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.command == "serve":
        raise SystemExit(serve(directory=options.directory, address=options.address))
    raise SystemExit(copy(source=options.source, url=options.url))


if __name__ == "__main__":
    main()
