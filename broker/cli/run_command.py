"""`hive-qos run`: puts a program that knows nothing of us, and all that it starts, into a class, and becomes it."""

from __future__ import annotations

import enum
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from broker import client
from broker.cli.exits import say
from broker.enforce import cgroups
from broker.policy.people import JOB_NAME_BYTES_MAX
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError, HiveError

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell returns for these."""
PATIENCE_S = 15.0
"""Where a user starts more programs at once than the broker moves: it moves 150 meanwhile."""


class TrafficClass(enum.StrEnum):
    """The classes of every host."""

    CONTROL = "control"
    COMPUTE = "compute"
    STORAGE = "storage"
    OTHER = "other"


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after `--`.")],
    traffic_class: Annotated[TrafficClass, typer.Option("--class", help="The class of its traffic.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="The job that it trains, as HIVE_JOB; of class compute.")
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket", readable=False, help="The session socket (default $HIVE_BROKER, /run/hive-qos/session.sock)."
        ),
    ] = None,
    optional: Annotated[
        bool, typer.Option("--optional", help="Run the program without a class where that fails.")
    ] = False,
) -> None:
    """Run a program with its traffic in a class.

    The broker moves this process into the class' cgroup, unless that would free it of limits. All sockets that the
    program and its children make there belong to the class. Root moves itself, also where the broker was killed. The
    exit code is the program's.

    \b
    Examples:
      hive-qos run --class storage -- rsync -a /data/ backup:/data/
      hive-qos run --class storage --optional -- restic backup /home
      hive-qos run --class compute --job llm -- torchrun train.py
    """
    if job is not None:
        os.environ["HIVE_JOB"] = _checked_job(job, traffic_class)
    try:
        _enter(traffic_class.value, None if socket is None else str(socket))
    except (BrokerUnavailableError, BrokerRejectedError) as problem:
        if not optional:
            raise
        say(f"running unclassified: {problem}")
    _become(command)


def _checked_job(job: str, traffic_class: TrafficClass) -> str:
    if traffic_class is not TrafficClass.COMPUTE:
        raise typer.BadParameter(f"a job is of --class compute, not {traffic_class.value}", param_hint="--job")
    if not job or not job.isprintable() or len(job.encode()) > JOB_NAME_BYTES_MAX:
        raise typer.BadParameter(f"write a printable name of at most {JOB_NAME_BYTES_MAX} bytes", param_hint="--job")
    return job


def _enter(traffic_class: str, path: str | None) -> None:
    if os.geteuid() == 0 and _moved_itself(traffic_class):
        return
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.request({"op": "enter", "class": traffic_class}, socket_path=path)
            return
        except BrokerRejectedError as problem:
            if problem.refusal != "too-many" or time.monotonic() >= give_up_s:
                raise
        time.sleep(random.uniform(0.2, 1.0))


def _moved_itself(traffic_class: str) -> bool:
    """Whether root could do it with the rights that it has here. The broker would not let it leave limits behind."""
    mount = cgroups.mount_point()
    if mount is None or not os.path.exists(cgroups.cgroup_path_of(mount, traffic_class)):
        return False
    try:
        cgroups.enter(mount, traffic_class=traffic_class, pid=os.getpid())
    except HiveError:  # a container's: the broker says what keeps it
        return False
    return True


def _become(command: list[str]) -> NoReturn:
    program = shutil.which(command[0])
    if program is None and not os.path.exists(command[0]):
        say(f"{command[0]}: no such program")
        raise typer.Exit(NOT_FOUND)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it ignores would stay ignored
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program or command[0], command)
    except OSError as problem:
        say(f"{command[0]}: {problem.strerror}")
        raise typer.Exit(NOT_EXECUTABLE) from None
