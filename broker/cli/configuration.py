"""The configuration file as commands see it: where it is, and what their options change of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broker.policy.types import DaemonPolicy, Policy

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
    from broker.daemon.config_store import read_file

    return read_file(path)


def parse(text: str, *, name: str, runtime_dir: Path | None, state_dir: Path | None, record: Path | None) -> Policy:
    """The policy of a file's text, with what the options `--runtime-dir`, `--state-dir` and `--record` replace.

    Raises:
        ConfigurationErrors: every mistake of the text.
    """
    from broker.policy.toml import load

    policy = load(text, name=name)
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


def state_directory(config: Path) -> Path:
    """Where the broker of a configuration file keeps its state; the default's where there is no such file.

    Raises:
        HiveError: the file has a mistake.
    """
    if not config.exists():  # cleaning up must work after the package has gone
        return Path(DaemonPolicy().state_dir)
    return Path(parse(read(config), name=str(config), runtime_dir=None, state_dir=None, record=None).daemon.state_dir)
