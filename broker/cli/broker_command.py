"""`hive-qos broker`, `clear` and `replay`: the daemon itself, its removal, and its recordings."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broker.cli.adapter_command import restored
from broker.cli.configuration import DEFAULT_CONFIG, Config, StateDir, read, state_directory
from broker.cli.configuration import parse as parsed
from broker.cli.exits import ExitCode
from broker.policy.settings import Setting
from broker.policy.types import Policy
from hive_qos.errors import BrokerRejectedError, ConfigurationError, ShapingError
from shaping.kernel_api import Classifier


def broker(
    config: Config = DEFAULT_CONFIG,
    runtime_dir: Annotated[
        Path | None, typer.Option("--runtime-dir", help="Where the two sockets go, instead of the configured paths.")
    ] = None,
    state_dir: StateDir = None,
    record: Annotated[Path | None, typer.Option("--record", help="Record every decision into this file.")] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace a root qdisc that somebody configured (put back at the end).")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the broker of this host (of this network namespace) in the foreground.

    SIGTERM or Ctrl-C puts back what was on the interfaces before; SIGHUP reads the configuration again.

    \b
    Examples:
      hive-qos check && hive-qos broker
      hive-qos broker --config ./broker.toml --runtime-dir /run/hive-qos-test --state-dir /run/hive-qos-test
    """

    def parse(text: str, settings: Sequence[Setting] = ()) -> Policy:
        return parsed(
            text, name=str(config), runtime_dir=runtime_dir, state_dir=state_dir, record=record, settings=settings
        )

    from broker.daemon.config_store import ConfigStore, Source
    from broker.events.log import open_log
    from broker.events.recent import RecentEvents
    from broker.events.telemetry import ENDPOINTS, from_environment

    telemetry, missing = None, ""
    try:
        telemetry = from_environment(os.environ, host=socket.gethostname())
    except ImportError as problem:
        missing = f"{problem}; install hive-qos[otel], or unset {' and '.join(ENDPOINTS)}"
    recent = RecentEvents()
    log = open_log(verbose=verbose, recent=recent, forward=telemetry.take if telemetry is not None else None)
    if missing:
        log.warning("telemetry-missing", note=missing)
    state = None if state_dir is None else str(state_dir.absolute())
    # A bad file with nothing good behind it is an error before anything heavy is imported or touched.
    configurations = ConfigStore(
        Source(read=lambda: read(config), parse=parse, state_dir=state, file=str(config.absolute())), log=log
    )
    from broker.daemon.composition import Environment
    from broker.daemon.daemon import Daemon
    from broker.process import priority
    from broker.process.notify import Notifier
    from broker.process.socket_finder_client import SocketFinder
    from broker.process.watchdog_client import WatchdogClient
    from shaping.kernel import RealKernel

    received: list[int] = []
    daemon: Daemon | None = None

    def stop(number: int, _: object) -> None:
        received.append(number)
        if daemon is not None:
            daemon.stop()

    def reload(*_: object) -> None:
        if daemon is not None:
            daemon.reload()

    # Before anything touches the kernel: from here on a signal asks, and what was touched is put back.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, reload)
    given = Environment(
        configurations=configurations,
        kernel=RealKernel(),
        classifier=_classifier(),
        log=log,
        recent=recent,
        watchdog=WatchdogClient(log=log),
        finder=SocketFinder(log=log),
        notifier=Notifier(),
        telemetry=telemetry,
        take_over=take_over,
    )
    daemon = Daemon(given)
    if received:
        daemon.stop()
    refused = priority.take()
    if refused is not None:
        log.warning("priority-refused", error=refused)
    gc.freeze()  # what was imported stays: no collection has to walk through it
    daemon.run()
    if signal.SIGINT in received:
        raise typer.Exit(ExitCode.INTERRUPTED)


def clear(
    config: Config = DEFAULT_CONFIG,
    state_dir: StateDir = None,
    force: Annotated[bool, typer.Option("--force", help="Even though a broker runs; it would build again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as JSON.")] = False,
) -> None:
    """Remove everything of ours from every interface of this network namespace, and put back what was there.

    Works when the broker is dead; where its journal is lost, the kernel's default comes back.

    \b
    Example:
      systemctl stop hive-qos; hive-qos clear
    """
    from broker.enforce import cgroups
    from broker.process.locks import Lock, NamespaceLock
    from shaping.journal import Journal
    from shaping.kernel import RealKernel
    from shaping.shaper import Shaper

    directory = state_dir or state_directory(config, warn=True)
    with contextlib.ExitStack() as held:  # no broker starts meanwhile
        try:
            if not force:
                held.enter_context(NamespaceLock())
                if directory.is_dir():
                    held.enter_context(Lock(os.path.join(directory, "broker.lock")))
        except BrokerRejectedError as problem:
            raise BrokerRejectedError(f"{problem.args[0]}, or use --force") from problem
        shaper = held.enter_context(Shaper(RealKernel(), Journal(directory), classifier=_classifier()))
        notes = list(shaper.clear())
        mount = cgroups.mount_point()
        busy = cgroups.remove(mount) if mount is not None else ()
    notes += restored()
    if busy:
        notes.append(f"programs still run in {', '.join(busy)}; the cgroups stay, without effect")
    if as_json:
        typer.echo(json.dumps({"done": notes}))
        return
    for note in notes or ["nothing of ours is here"]:
        typer.echo(note)


def replay(
    file: Annotated[
        Path, typer.Argument(readable=False, help="A recording (`--record`, or `record_file` in the configuration).")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Give the result as JSON.")] = False,
) -> None:
    """Decide again what a recording decided, and compare.

    \b
    Example:
      hive-qos replay /var/lib/hive-qos/decisions.jsonl
    """
    from broker.law.recording import replay as replay_lines

    try:
        with open(file, encoding="utf-8") as lines:
            result = replay_lines(line.rstrip("\n") for line in lines)
    except OSError as problem:
        raise ConfigurationError("FILE", str(file), f"cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise ConfigurationError("FILE", str(file), str(problem)) from problem
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(result)))
    elif result.first_difference is None:
        typer.echo(f"{result.ticks} decisions replayed; all the same")
    else:
        what = f"line {result.first_difference} comes out otherwise (of {result.ticks} decisions)"
        typer.echo(what)
    if result.first_difference is not None:
        raise typer.Exit(ExitCode.FOUND)


def _classifier() -> Classifier | None:
    """The classifier of sockets, where this host can have one; the daemon says what is missing where it cannot."""
    from shaping.classify.cgroup import SocketClassifier

    try:
        return SocketClassifier()
    except ShapingError:
        return None
