"""`hive-qos adapter`: follows storage programs, and gives them back their own limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.configuration import DEFAULT_CONFIG, Config, parse, read
from broker.cli.exits import ExitCode
from broker.cli.options import JsonOption
from hive_qos.errors import ConfigurationError

DEFAULT_STATE = Path("/var/lib/hive-qos-adapter")
BY_ITSELF = "limits of storage programs: hive-qos-adapter gives them back by itself, within 10 s without a broker"
RESTORE_S_MAX = 120.0
"""Sixteen programs, each with three questions of 5 s at most, is twice as long; that many hung ones are left."""


def adapter(
    config: Config = DEFAULT_CONFIG,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the configuration and keys, and ask each program once.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Only give each program back the limit that it had before us.")
    ] = False,
    runtime_dir: Annotated[
        Path | None, typer.Option("--runtime-dir", help="Where the broker's sockets are, instead of as configured.")
    ] = None,
    state_dir: Annotated[
        Path, typer.Option("--state-dir", help="Where to keep what limits the programs had before us.")
    ] = DEFAULT_STATE,
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Follow the programs of [[storage_program]]: read what they have to send, and set their own limits.

    Runs in the foreground, best as hive-qos-adapter.service. SIGTERM or Ctrl-C gives each program its own limit back.

    \b
    Examples:
      hive-qos adapter --check
      hive-qos adapter --restore
      systemctl enable --now hive-qos-adapter
    """
    if restore:
        _restore(state_dir, as_json)
        return
    policy = parse(read(config), name=str(config), runtime_dir=runtime_dir, state_dir=None, record=None)
    if not policy.storage_programs:
        raise ConfigurationError(
            "storage_program",
            None,
            "none is configured, so there is nothing to follow; write a [[storage_program]] section",
        )
    from broker.adapters.service import adapter_of, serve
    from broker.events.log import open_log
    from broker.process.locks import Lock, directory

    if check:
        _check([(program.name, adapter_of(program)) for program in policy.storage_programs], as_json)
        return
    stop = threading.Event()
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    directory(str(state_dir), key="--state-dir", mode=0o700)
    with Lock(os.path.join(state_dir, "adapter.lock")):
        serve(
            policy.storage_programs,
            directory=state_dir,
            socket_path=policy.daemon.session_socket,
            log=open_log(verbose=verbose),
            stop=stop,
        )
    if signal.SIGINT in received:
        raise typer.Exit(ExitCode.INTERRUPTED)


def restored(state_dir: Path = DEFAULT_STATE) -> list[str]:
    """What `adapter --restore` does, as the user who owns the state: root does not trust what that user wrote.

    Returns:
        A line for each program.
    """
    try:
        owner = os.lstat(state_dir)
        if not any(state_dir.glob("*.json")):
            return []
        argv = [sys.executable, "-P", "-m", "hive_qos", "adapter", "--restore", "--json", "--state-dir", str(state_dir)]
        user, group = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else (None, None)
        result = subprocess.run(
            argv,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=RESTORE_S_MAX,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        if result.returncode == ExitCode.BROKER_REJECTED:  # it is at work
            return [BY_ITSELF]
        if result.returncode not in (ExitCode.OK, ExitCode.FOUND):
            return [f"limits of storage programs were not restored: {result.stderr.strip()}"]
        found = json.loads(result.stdout)
        return [*found["done"], *(f"{line}; its limit stays" for line in found["failed"])]
    except FileNotFoundError:
        return []
    except PermissionError:  # hive-qos-restore.service may not become another user; a dead adapter's unit has restored
        return [BY_ITSELF]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as problem:
        return [f"limits of storage programs were not restored: {problem}"]


def _restore(state_dir: Path, as_json: bool) -> None:
    from broker.adapters.service import restore_all
    from broker.process.locks import Lock

    done: list[str] = []
    failed: list[str] = []
    if state_dir.is_dir():
        with Lock(os.path.join(state_dir, "adapter.lock")):
            done, failed = restore_all(state_dir)
    if as_json:
        typer.echo(json.dumps({"done": done, "failed": failed}))
    else:
        for line in done or ([] if failed else ["no storage program has a limit of ours"]):
            typer.echo(line)
        for line in failed:
            typer.echo(f"hive-qos: {line}; start it, then try again", err=True)
    if failed:
        raise typer.Exit(ExitCode.FOUND)


def _check(adapters: list[tuple[str, object]], as_json: bool) -> None:
    """Ask each program once, and say what it has to do."""
    import msgspec

    from broker.adapters.program import ProgramError, StorageAdapter
    from hive_qos.units import format_rate, format_size

    found = []
    for name, one in adapters:
        assert isinstance(one, StorageAdapter)
        entry: dict[str, object] = {"name": name}
        try:
            backlog = one.read()
            limit = one.rate_bits_per_s(one.settings()[1]) if one.limits else None
            entry |= {"state": "working", "limit_bits_per_s": limit, "backlog": msgspec.to_builtins(backlog)}
            has = "no limit of its own" if limit is None else f"its own limit is {format_rate(limit)}"
            has = has if one.limits else "only the kernel limits it"
            text = f"{name}: fine; {format_size(backlog.upload_bytes)} to send; {has}"
        except ProgramError as problem:
            entry |= {"state": problem.state, "text": problem.text}
            text = f"{name}: {problem.text}"
        found.append(entry)
        if not as_json:
            typer.echo(text, err=entry["state"] != "working")
    if as_json:
        typer.echo(json.dumps({"programs": found}))
    if any(entry["state"] != "working" for entry in found):
        raise typer.Exit(ExitCode.FOUND)
