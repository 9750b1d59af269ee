"""All programs of a configuration, a thread each, until told to end; and what is put back without them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from broker.adapters.clusters import Ceph, Minio, SeaweedFs
from broker.adapters.follower import ROUND_S, Follower
from broker.adapters.http import read_key
from broker.adapters.limiter import Limiter, records
from broker.adapters.program import ProgramError, StorageAdapter
from broker.adapters.rclone import Rclone
from broker.adapters.syncthing import Syncthing
from broker.client.session import Session
from broker.events.log import Log
from broker.policy.types import StorageProgram
from hive_qos.errors import HiveError

KINDS: dict[str, type[Syncthing | Rclone | Minio | Ceph | SeaweedFs]] = {
    "syncthing": Syncthing,
    "rclone": Rclone,
    "minio": Minio,
    "ceph": Ceph,
    "seaweedfs": SeaweedFs,
}
RETIRED_S = 30.0
"""Between two tries to put back the limit of a program that is no longer configured."""


def adapter_of(program: StorageProgram) -> StorageAdapter:
    """The adapter of a program, with its key.

    Raises:
        ConfigurationError: its key cannot be used.
    """
    return KINDS[program.kind](program, read_key(program))


def serve(
    programs: Sequence[StorageProgram], *, directory: Path, socket_path: str, log: Log, stop: threading.Event
) -> None:
    """Follow all programs until `stop` is set, then put back what was found.

    Args:
        directory: where it is kept what was found.
        socket_path: the broker's session socket.

    Raises:
        ConfigurationError: a key cannot be used; nothing was touched.
    """
    adapters = [(program, adapter_of(program)) for program in programs]
    threads = [
        threading.Thread(target=_follow, args=(program, adapter, directory, socket_path, log, stop), name=program.name)
        for program, adapter in adapters
    ]
    for thread in threads:
        thread.start()
    log.info("adapter-ready", programs=",".join(program.name for program in programs))
    told: set[StorageProgram] = set()
    while not stop.wait(RETIRED_S if _retire(programs, directory, log, told) else None):
        pass
    for thread in threads:
        thread.join()


def restore_all(directory: Path) -> tuple[list[str], list[str]]:
    """Put back every limit that is kept there, of programs that nobody follows.

    Returns:
        What was done, and what could not be; a line a program.
    """
    done, failed = [], []
    for record in records(directory):
        try:
            restored = Limiter(record.program, adapter_of(record.program), directory).restore()
            done.append(f"{record.program.name}: {restored or 'nothing of ours is there'}")
        except ProgramError as problem:
            failed.append(f"{record.program.name}: {problem.text}")
        except (HiveError, OSError) as problem:
            failed.append(f"{record.program.name}: {problem}")
    return done, failed


def _follow(
    program: StorageProgram,
    adapter: StorageAdapter,
    directory: Path,
    socket_path: str,
    log: Log,
    stop: threading.Event,
) -> None:
    """The body of a program's thread."""
    with Session(job="", client=f"adapter {program.name}", socket_path=socket_path) as session:
        limiter = Limiter(program, adapter, directory)
        follower = Follower(program, adapter, limiter, session, log=log, clock=time.monotonic)
        try:
            while True:
                try:
                    follower.round()
                except Exception:  # a mistake of ours with one program must not end the others
                    log.error("storage-program-mistake", program=program.name, exc_info=True)
                if stop.wait(ROUND_S):
                    break
        finally:
            follower.end()


def _retire(programs: Sequence[StorageProgram], directory: Path, log: Log, told: set[StorageProgram]) -> bool:
    """Put back the limits of programs that are configured no longer, or no longer to be limited; whether some are
    left, each of which is told once."""
    followed = {(program.name, program.kind, program.url) for program in programs if program.limit}
    left = False
    for record in records(directory):
        program = record.program
        if (program.name, program.kind, program.url) in followed:
            continue
        try:
            note = Limiter(program, adapter_of(program), directory).restore()
            log.info("storage-limit-restored", program=program.name, note=f"it is configured no longer; {note}")
        except (HiveError, OSError) as problem:
            if program not in told:
                told.add(program)
                log.error("storage-limit-left", program=program.name, error=str(problem))
            left = True
    return left
