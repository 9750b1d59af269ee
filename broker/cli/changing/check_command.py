"""`hive-qos check`: every mistake of a configuration with its line, and what else would keep it from working."""

from __future__ import annotations

import dataclasses
import datetime
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli.configuration import DEFAULT_CONFIG, read
from broker.cli.exits import ExitCode
from broker.cli.options import JsonOption
from broker.policy.locate import line_in, line_of, lines_of
from broker.policy.toml import SHOWN_MAX, ConfigurationErrors, load
from broker.policy.types import Policy
from hive_qos.errors import ConfigurationError
from hive_qos.text import printable

LINE_LENGTH_MAX = 160
"""Of a line of the file, as shown below a mistake."""

FileArgument = Annotated[
    Path, typer.Argument(metavar="[FILE]", readable=False, help="The configuration to look at.", show_default=True)
]


@dataclass(frozen=True)
class Mistake:
    """One thing that keeps a file from being taken.

    Args:
        line: where it stands, from 1 on; None where the file says nothing of it.
        key, value: as they stand there; value is "" where none does.
        reason: what is wrong, and what to write instead.
        source: that line.
    """

    line: int | None
    key: str
    value: str
    reason: str
    source: str = ""


class MistakenFileError(ConfigurationErrors):
    """A file with mistakes: its text has each with its line, as compilers write them."""

    def __init__(self, file: Path, text: str, found: ConfigurationErrors) -> None:
        super().__init__(found.problems)
        self.file, self.mistakes = file, mistakes_of(text, found)

    def __str__(self) -> str:
        return "\n".join(mistake_lines(self.file, self.mistakes))


def check(file: FileArgument = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Look for mistakes in a configuration: line, key, value, and what to write instead.

    It asks no broker and changes nothing. The exit code is 3 where there is a mistake. A warning is none: an interface
    that is not there may come later. `/dev/stdin` reads a pipe.

    \b
    Examples:
      hive-qos check
      hive-qos check ./broker.toml
      hive-qos check --json | jq -r '.mistakes[].reason'
    """
    try:
        text = read(file)
        policy = checked_text(text, file=file)
        try:
            notes, warnings = certificate_of(policy)
        except ConfigurationError as problem:
            raise MistakenFileError(file, text, ConfigurationErrors([problem])) from problem
    except MistakenFileError as problem:
        if as_json:
            mistakes = [dataclasses.asdict(one) for one in problem.mistakes]
            typer.echo(json.dumps({"file": str(file), "mistakes": mistakes}))
        else:
            typer.echo(str(problem))
        raise typer.Exit(ExitCode.CONFIGURATION) from None
    names = [entry.name for entry in policy.interfaces]
    warnings = [*_absent(policy), *_misplaced(names), *warnings]
    if as_json:
        found = {"file": str(file), "mistakes": [], "interfaces": names, "notes": notes, "warnings": warnings}
        typer.echo(json.dumps(found))
        return
    typer.echo(f"{printable(str(file))}: fine; shapes {', '.join(names)}")
    for note in notes:
        typer.echo(printable(note, length_max=1000))
    for warning in warnings:
        typer.echo(f"hive-qos: warning: {printable(warning, length_max=1000)}", err=True)


def checked(file: Path) -> Policy:
    """The policy of a file.

    Raises:
        MistakenFileError: with each mistake and its line.
        ConfigurationError: it cannot be read.
    """
    return checked_text(read(file), file=file)


def checked_text(text: str, *, file: Path) -> Policy:
    """The same of a text that was read already."""
    try:
        return load(text, name=str(file))
    except ConfigurationErrors as found:
        raise MistakenFileError(file, text, found) from None


def mistakes_of(text: str, found: ConfigurationErrors) -> tuple[Mistake, ...]:
    """Each problem of a text with its line, in the order of the lines."""
    try:
        lines = lines_of(text)
    except (ValueError, RecursionError):  # no TOML: tomllib's own words have the line
        lines = {}
    source = text.splitlines()
    mistakes = []
    for problem in found.problems:
        line = line_of(problem.key, lines) or line_in(problem.reason)
        shown = source[line - 1].strip() if line is not None and line <= len(source) else ""
        mistakes.append(
            Mistake(
                line=line,
                key=printable(problem.key),
                value=_value(problem.value),
                reason=printable(problem.reason, length_max=1000),
                source=printable(shown, length_max=LINE_LENGTH_MAX),
            )
        )
    return tuple(sorted(mistakes, key=lambda one: one.line or 0))


def mistake_lines(file: Path, mistakes: tuple[Mistake, ...]) -> list[str]:
    """What a terminal shows: `FILE:LINE: key: reason`, which editors jump to, and the line itself."""
    shown = []
    for one in mistakes[:SHOWN_MAX]:
        place = printable(str(file)) + (f":{one.line}" if one.line is not None else "")
        what = f"{one.key} = {one.value}" if one.value else one.key
        shown.append(f"{place}: {one.reason}" if one.key == str(file) else f"{place}: {what}: {one.reason}")
        if one.source:
            shown.append(f"{one.line:>5} | {one.source}")
    count = f"{len(mistakes)} mistake{'s' if len(mistakes) != 1 else ''}"
    return [*shown, count]


def _value(value: Any) -> str:
    if value is None:
        return ""
    try:
        return printable(json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value))
    except (ValueError, RecursionError):  # numbers too long, lists too deep
        return "(too large to show)"


def _absent(policy: Policy) -> list[str]:
    """Interfaces may come later, so that this is no mistake; but a wrong name is the usual reason."""
    here = {name for _, name in socket.if_nameindex()}
    absent = [entry.name for entry in policy.interfaces if entry.name not in here]
    what = "it is shaped when it appears"
    if len(absent) == len(policy.interfaces):
        what = "the broker does not start while none of its interfaces is there"
    others = ", ".join(sorted(here - {"lo"})) or "none but lo"
    return [f"no interface {name} in this network namespace (there: {others}); {what}" for name in absent]


def _misplaced(names: list[str]) -> list[str]:
    from broker.enforce.device_stack import misplaced

    return [f"{one.interface} {one.text}; {one.advice}" for one in misplaced(names)]


def certificate_of(policy: Policy) -> tuple[list[str], list[str]]:
    """Look at the files of `[peers]` as a start would; notes, and warnings.

    Raises:
        ConfigurationError: other brokers would refuse them.
    """
    if policy.peers is None:
        return [], []
    from broker.peers.identity import broker_identity, certified_addresses, ends_of
    from broker.peers.own_certificate import WARN_DAYS

    identity = broker_identity(policy.peers)
    until = ends_of(identity).first
    addresses = ", ".join(sorted(certified_addresses(identity)))
    path, warnings = policy.peers.certificate, []
    if not addresses:
        text = "it names no address, so nobody holds back towards this host; issue another with --address"
        warnings.append(f"{path}: {text}")
    if (until - datetime.datetime.now(datetime.UTC)).days <= WARN_DAYS:
        warnings.append(f"{path}: ends on {until:%Y-%m-%d}; renew it: hive-qos ca issue NODE --renew")
    return [f"{path}: fine; for {addresses or 'no address'}, good until {until:%Y-%m-%d}"], warnings
