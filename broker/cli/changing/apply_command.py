"""`hive-qos apply`: take a configuration on trial; it becomes the broker's file only if somebody says so in time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from broker.cli.changing.check_command import checked_text
from broker.cli.changing.durations import duration_s
from broker.cli.configuration import DEFAULT_CONFIG, read
from broker.cli.exits import ExitCode
from broker.cli.options import SocketOption
from broker.client import http
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN
from hive_qos.errors import BrokerError, BrokerRejectedError, ConfigurationError
from hive_qos.files import write_whole
from hive_qos.text import printable

LOOK_S = 1.0
"""How often it is looked whether another terminal has confirmed, and the seconds are counted down."""

FileOption = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", readable=False, help="The new configuration (default: the broker's own file)."),
]


class _Ended(BaseException):
    """A signal: the terminal has gone, or somebody ends us."""


def apply(
    file: FileOption = None,
    confirm_within: Annotated[
        str | None,
        typer.Option(
            "--confirm-within", metavar="DURATION", help="How long the trial lasts: 1s to 1h; 60s is the default."
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Ask nothing. With --confirm-within the trial begins; else it is for good."),
    ] = False,
    confirm: Annotated[bool, typer.Option("--confirm", help="Keep what is on trial, from any terminal.")] = False,
    back: Annotated[bool, typer.Option("--back", help="End the trial now, and go back.")] = False,
    socket: SocketOption = None,
) -> None:
    """Put a configuration in force, and go back unless you confirm.

    It checks the file, shows what changes, and takes it on trial. It asks whether you still reach the host: y keeps it,
    and makes it the broker's own file. Without an answer, at Ctrl-C, and where the terminal dies, the former
    configuration comes back, and its file was never touched. That stays beside a new one, with the end .former.

    \b
    Examples:
      hive-qos apply
      hive-qos apply ./broker.toml --confirm-within 5m
      hive-qos apply --yes --confirm-within 60s    # then, from a new login: hive-qos apply --confirm
    """
    path = None if socket is None else str(socket)
    if confirm or back:
        if (confirm and back) or yes or file is not None or confirm_within is not None:
            raise typer.BadParameter("--confirm and --back stand alone")
        typer.echo(http.post("/v1/confirm" if confirm else "/v1/rollback", socket_path=path))
        return
    trial_s = _trial_s(confirm_within, yes=yes)
    if not yes and not sys.stdin.isatty():
        text = "nobody can be asked without a terminal; use --yes, or --yes --confirm-within 60s and then --confirm"
        raise typer.BadParameter(text)
    installed = broker_file(socket, needed=True)
    text = read(file or installed)
    if not _worth_it(text, file or installed, socket=socket, installed=installed):
        return
    with _signals():
        try:
            other = file is not None and file.resolve() != installed.resolve()
            _take(text if other else None, installed, trial_s, path=path, asks=not yes)
        except _Ended:
            raise typer.Exit(ExitCode.SYSTEM) from None


def broker_file(socket: Path | None, *, needed: bool = False) -> Path:
    """The file that the broker reads; the default's where none runs, unless it is needed.

    Raises:
        BrokerError: it is needed, and no broker tells.
    """
    try:
        found = http.status(None if socket is None else str(socket)).get("configuration", {}).get("file")
    except BrokerError:
        if needed:
            raise
        found = None
    return Path(str(found or DEFAULT_CONFIG))


def _worth_it(text: str, file: Path, *, socket: Path | None, installed: Path) -> bool:
    """Check, and show the plan; False where nothing is to be done."""
    from broker.cli.changing.planning import lines_of, plan_for

    checked_text(text, file=file)
    made = plan_for(text, file=file, socket=socket)
    for line in lines_of(made, file=file):
        typer.echo(line)
    return made.changes or file.resolve() != installed.resolve()


def _trial_s(text: str | None, *, yes: bool) -> float | None:
    """None: for good at once."""
    if text is None and yes:
        return None
    found = duration_s(text or "60s", option="--confirm-within")
    if not TRIAL_S_MIN <= found <= TRIAL_S_MAX:
        raise ConfigurationError("--confirm-within", text, f"write {TRIAL_S_MIN:g}s to {TRIAL_S_MAX / 3600:g}h")
    return found


def _offer(file: Path, text: str) -> None:
    """Lay a candidate beside the broker's file, and what that says now, to stay as the former one.

    Both get the file's rights and owner. The broker puts both into their places once the candidate is good.

    Raises:
        OSError: it cannot be written.
    """
    from broker.daemon.config_file import candidate_place, former_place, withdraw

    file = file.resolve()
    candidate = candidate_place(file)
    try:
        withdraw(file)  # of an apply that was killed
        if file.exists():
            found, former = file.stat(), read(file)
            if former != text:
                _write(candidate_place(former_place(file)), former, found)
            _write(candidate, text, found)
        else:
            write_whole(candidate, text, mode=0o644)
    except PermissionError as problem:
        problem.strerror = "only root may write it; sudo hive-qos apply, or `hive-qos set` for single settings"
        raise
    except BaseException:  # Ctrl-C, or the terminal dies
        withdraw(file)
        raise


def _write(place: Path, text: str, found: os.stat_result) -> None:
    """With the rights and the owner of the file that was found."""
    write_whole(place, text, mode=stat.S_IMODE(found.st_mode))
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a file system that knows no owners
            os.chown(place, found.st_uid, found.st_gid, follow_symlinks=False)


def _take(offered: str | None, installed: Path, trial_s: float | None, *, path: str | None, asks: bool) -> None:
    """Have the broker take its file, or the text that is offered for it, and ask whether to keep it."""
    from broker.daemon.config_file import withdraw

    query = {} if trial_s is None else {"confirm_s": f"{trial_s:g}"}
    if offered is not None:
        query["candidate"] = "true"
        _offer(installed, offered)
    try:
        said = http.post(f"/v1/reload?{urlencode(query)}", socket_path=path)
        if trial_s is None or "nothing to confirm" in said.done or not asks:
            typer.echo(printable(str(said), length_max=1000))
            return
        typer.echo(f"on trial for {trial_s:g} s. Try a new login before you confirm.")
        kept = _confirmed(trial_s, offered, installed, path=path)
    except BaseException as problem:
        if isinstance(problem, _Ended | KeyboardInterrupt):
            _go_back(path)
        if offered is not None:  # what the broker has not taken yet, it never does
            withdraw(installed)
        raise
    if not kept:
        _go_back(path)
        raise typer.Exit(ExitCode.BROKER_REJECTED)


def _confirmed(trial_s: float, offered: str | None, installed: Path, *, path: str | None) -> bool:
    """Ask until there is an answer here or elsewhere, or the time is over."""
    until_s = time.monotonic() + trial_s
    while (left_s := until_s - time.monotonic()) > 0:
        _say(f"\rKeep it? [y/N] {left_s:3.0f} s ")
        ready, _, _ = select.select([sys.stdin], [], [], min(LOOK_S, left_s))
        if ready:
            answer = sys.stdin.readline().strip().lower()
            if answer not in ("y", "yes"):
                return False
            typer.echo(http.post("/v1/confirm", socket_path=path))
            return True
        configuration = _configuration(path)
        if configuration is not None and configuration.get("trial_left_s") is None:
            return _ended_elsewhere(offered, installed, path)
    _say("\nno answer\n")
    return False


def _ended_elsewhere(offered: str | None, installed: Path, path: str | None) -> bool:
    """Another terminal has ended the trial: whether it kept what was on trial."""
    codes = {alarm.get("code") for alarm in http.status(path).get("alarms", []) if isinstance(alarm, dict)}
    # The latter where the broker was restarted meanwhile.
    kept = codes.isdisjoint(("configuration-rolled-back", "configuration-rejected"))
    kept = kept and offered in (None, read(installed))
    _say("\nconfirmed from another terminal\n" if kept else "\nended from another terminal\n")
    return kept


def _configuration(path: str | None) -> Mapping[str, Any] | None:
    try:
        found = http.status(path).get("configuration")
    except BrokerError:  # busy, or restarting: the countdown goes on
        return None
    return found if isinstance(found, dict) else None


def _go_back(path: str | None) -> None:
    """End the trial. Where that fails, its own time does."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        said = str(http.post("/v1/rollback", socket_path=path))
    except BrokerRejectedError:
        said = "the trial is over; hive-qos status shows what is in force"
    except BrokerError as problem:
        said = f"{problem}; the former configuration comes back when the trial's time is over"
    _say(f"\n{printable(said, length_max=1000)}\n")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """A terminal that dies and a request to end are exceptions here, so that the way back is taken."""

    def end(*_: object) -> None:
        raise _Ended

    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
