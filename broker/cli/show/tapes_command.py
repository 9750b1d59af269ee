"""`hive-qos tapes`: whether the members of a volatile group committed the same steps, and what happened to it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.exits import ExitCode
from broker.cli.options import JsonOption
from hive_qos.text import few, printable

if TYPE_CHECKING:
    from transport.volatile.record.tape_history import TapedEpoch

NAMES_MAX = 6
"""Of those that came or left; then how many more."""


def tapes(
    files: Annotated[
        list[Path], typer.Argument(help="The tapes of a job's members, as HIVE_TAPE has them written.", dir_okay=False)
    ],
    replay: Annotated[
        bool, typer.Option("--replay", help="Tell first what happened: who came and left, and how steps went on.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether all commits on the tapes of a job's members agree and form one chain, and who differs where.

    A member of a volatile group writes a tape into the folder HIVE_TAPE. The file before each, FILE.1, is read too. The
    exit code is 9 where something differs.

    \b
    Examples:
      hive-qos tapes tapes/*.jsonl
      hive-qos tapes tapes/*.jsonl --replay
      hive-qos tapes tapes/*.jsonl --json | jq '.history[] | select(.without_commit_s > 5)'
    """
    from transport.volatile.record import tape_check
    from transport.volatile.record.tape_history import history

    read = [tape for path in files for tape in tape_check.read(path)]
    found = tape_check.check(read)
    if as_json:
        import msgspec

        document = {**msgspec.to_builtins(found), "history": msgspec.to_builtins(history(read))}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    else:
        from broker.cli.show.screen import Output

        console = Output()
        for epoch in history(read) if replay else ():
            console.print(printable(_told(epoch)), markup=False)
        steps = f"steps {found.first_step} to {found.last_step}" if found.commits else "no step"
        what = f"{len(found.members)} members committed {steps} in {found.views} views"
        what += f" of {found.runs} runs" if found.runs > 1 else ""
        said = "they differ" if found.findings else "one chain each" if found.runs > 1 else "one chain"
        console.print(f"{what}: {said}", markup=False)
        for one in found.findings:
            console.print(printable(one), markup=False)
    if found.findings:
        raise typer.Exit(ExitCode.FOUND)


def _told(epoch: TapedEpoch) -> str:
    """A view in words."""
    told = [f"{epoch.members} members"]
    for who, what in ((epoch.left, "gone"), (epoch.came, "came"), (epoch.learning, "learning")):
        if who:
            told.append(f"{few([one.name for one in who], at_most=NAMES_MAX)} {what}")
    if not epoch.last_step:
        told.append("no step")
    elif epoch.first_step == epoch.last_step:
        told.append(f"step {epoch.last_step}")
    else:
        rate = f", {epoch.steps_per_s:.3g} a second" if epoch.steps_per_s else ""
        told.append(f"steps {epoch.first_step} to {epoch.last_step}{rate}")
    if epoch.without_commit_s is not None:
        told.append(f"at most {epoch.without_commit_s:.1f} s without one")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch.at_s))
    return f"{when} view {epoch.epoch}: {'; '.join(told)}"
