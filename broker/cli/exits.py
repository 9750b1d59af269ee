"""Exit codes by kind of error, and the one place where an exception becomes a line on stderr.

`docs/reference/cli.md` has the codes.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, ParamSpec

import typer

from broker.cli import exit_interrupted
from hive_qos.errors import (
    BrokerError,
    BrokerRejectedError,
    BrokerUnavailableError,
    ConfigurationError,
    HiveError,
    PrivilegeError,
    ShapingError,
    TransportError,
)
from hive_qos.text import printable

P = ParamSpec("P")
TEXT_LENGTH_MAX = 20_000
"""Longer than all mistakes of a configuration: what somebody else chose is not shown without an end."""


class ExitCode(enum.IntEnum):
    """What a script can tell errors apart by. Stable."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIGURATION = 3
    BROKER_UNAVAILABLE = 4
    BROKER_REJECTED = 5
    PRIVILEGE = 6
    KERNEL = 7
    TRANSPORT = 8
    FOUND = 9
    SYSTEM = 10
    INTERRUPTED = 130


MEANINGS: Final = {
    ExitCode.OK: "fine",
    ExitCode.BUG: "a bug of ours",
    ExitCode.USAGE: "usage",
    ExitCode.CONFIGURATION: "configuration",
    ExitCode.BROKER_UNAVAILABLE: "no broker",
    ExitCode.BROKER_REJECTED: "refused by the broker",
    ExitCode.PRIVILEGE: "privilege missing",
    ExitCode.KERNEL: "refused by the kernel",
    ExitCode.TRANSPORT: "certificate or peer",
    ExitCode.FOUND: "something was found (doctor, plan, replay, job --tape)",
    ExitCode.SYSTEM: "the system (no room on a disk, no file, no memory)",
    ExitCode.INTERRUPTED: "interrupted",
}
"""Each code in a few words, for every help page and `docs/reference/cli.md`."""
EPILOG: Final = f"Exit codes: {', '.join(f'{code.value} {meaning}' for code, meaning in MEANINGS.items())}."


def code_of(error: HiveError) -> ExitCode:
    """The exit code of an error of ours."""
    match error:
        case BrokerRejectedError() if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            return ExitCode.CONFIGURATION
        case BrokerUnavailableError():
            return ExitCode.BROKER_UNAVAILABLE
        case BrokerError():
            return ExitCode.BROKER_REJECTED
        case PrivilegeError():
            return ExitCode.PRIVILEGE
        case ShapingError():
            return ExitCode.KERNEL
        case TransportError():
            return ExitCode.TRANSPORT
        case ConfigurationError():
            return ExitCode.CONFIGURATION
    return ExitCode.CONFIGURATION if error.code == ConfigurationError.code else ExitCode.BUG


def report_abandoned() -> None:
    """Where no broker answers: open what a killed one has left in the kernel, and report it."""
    from broker.cli.abandoned import open_abandoned

    found = open_abandoned()
    if found is not None:
        say(found)


def report_system(error: OSError) -> ExitCode:
    """Say what the system refused, and give the exit code of that."""
    text = f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = "there, or name another place" if error.filename else "where its output and its files go"
        text = f"{text}; free some space {place}"
    say(text)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return ExitCode.PRIVILEGE if isinstance(error, PermissionError) else ExitCode.SYSTEM


def say(text: str) -> None:
    """Write a line to stderr; where even that cannot be written, the exit code says it alone."""
    with contextlib.suppress(OSError):
        typer.echo(f"hive-qos: {printable(text, length_max=TEXT_LENGTH_MAX, lines=True)}", err=True)


def _drop_output() -> None:
    """Write what is still to be printed nowhere; Python would try again at the end, and say so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(command: Callable[P, None], *, service: bool = False) -> Callable[P, None]:
    """Turn what a command raises into one readable line and an exit code; HIVE_DEBUG=1 shows the traceback instead.

    Args:
        service: nobody reads its output, so that a broken pipe is an error as any other.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = os.environ.get("HIVE_DEBUG") == "1"
        before = signal.getsignal(signal.SIGINT)
        try:
            if before is exit_interrupted:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            command(*args, **kwargs)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):  # the latter at a question
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except HiveError as error:
            if debug:
                raise
            say(str(error))
            if isinstance(error, BrokerUnavailableError):
                report_abandoned()
            raise typer.Exit(code_of(error)) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not service:  # `hive-qos status | head`: the reader has enough
                _drop_output()
                raise typer.Exit(ExitCode.OK) from None
            if debug:
                raise
            raise typer.Exit(report_system(error)) from None
        finally:
            if before is exit_interrupted:
                signal.signal(signal.SIGINT, before)

    return run
