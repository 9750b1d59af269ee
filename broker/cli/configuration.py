"""The configuration file as commands see it: where it is, and what their options change of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broker.policy.settings import Setting
from broker.policy.types import DaemonPolicy, Policy
from hive_qos.errors import HiveError

DEFAULT_CONFIG = Path("/etc/hive-qos/broker.toml")

Config = Annotated[Path, typer.Option("--config", "-c", readable=False, help="The broker's configuration file.")]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Where to record what was on the interfaces before us.")
]


def read(path: Path) -> str:
    """The file's text.

    Raises:
        HiveError: it cannot be read, or is no text of a sensible size.
    """
    from broker.daemon.config_file import read_file

    return read_file(path)


def parse(
    text: str, *, name: str, runtime_dir: Path | None, state_dir: Path | None, record: Path | None,
    settings: Sequence[Setting] = (),
) -> Policy:  # fmt: skip
    """The policy of a file's text, with what the options `--runtime-dir`, `--state-dir` and `--record` replace.

    Raises:
        ConfigurationErrors: every mistake of the text.
    """
    from broker.policy.toml import load

    policy = load(text, name=name, settings=settings)
    daemon = policy.daemon
    if runtime_dir is not None:
        folder = runtime_dir.absolute()
        daemon = msgspec.structs.replace(
            daemon, api_socket=str(folder / "broker.sock"), session_socket=str(folder / "session.sock")
        )
    if state_dir is not None:
        daemon = msgspec.structs.replace(daemon, state_dir=str(state_dir.absolute()))
    if record is not None:
        daemon = msgspec.structs.replace(daemon, record_file=str(record.absolute()))
    return msgspec.structs.replace(policy, daemon=daemon)


def state_directory(config: Path, *, warn: bool = False) -> Path:
    """Where the broker of a configuration file keeps its state, also where the file is gone or has a mistake.

    Cleaning up must work for who broke the file, and after the package has gone.

    Args:
        warn: name the directory on stderr where the file has a mistake.
    """
    from broker.daemon.config_store import state_dir_in

    if not config.exists():
        return Path(DaemonPolicy().state_dir)
    text = ""
    try:
        text = read(config)
        parse(text, name=str(config), runtime_dir=None, state_dir=None, record=None)
        mistaken = False
    except HiveError:
        mistaken = True
    directory = Path(state_dir_in(text))
    if mistaken and warn:
        note = f"has a mistake (hive-qos check names it); what was there before is looked for in {directory}"
        typer.echo(f"hive-qos: warning: {config} {note}", err=True)
    return directory
