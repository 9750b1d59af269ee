"""`hive-qos tapes`: whether the members of a volatile group committed the same steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.exits import ExitCode
from broker.cli.options import JsonOption


def tapes(
    files: Annotated[
        list[Path], typer.Argument(help="The tapes of a job's members, as HIVE_TAPE has them written.", dir_okay=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Say whether all commits on the tapes of a job's members agree and form one chain, and who differs where.

    A member of a volatile group writes a tape into the folder HIVE_TAPE. The file before each, FILE.1, is read too. The
    exit code is 9 where something differs.

    \b
    Examples:
      hive-qos tapes tapes/*.jsonl
      hive-qos tapes desk-1.jsonl desk-2.jsonl --json | jq '.findings[]'
    """
    from hive_qos.text import printable
    from transport.volatile.record import tape_check

    found = tape_check.check([tape for path in files for tape in tape_check.read(path)])
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        from broker.cli.show.screen import Output

        console = Output()
        steps = f"steps {found.first_step} to {found.last_step}" if found.commits else "no step"
        what = f"{len(found.members)} members committed {steps} in {found.views} views"
        what += f" of {found.runs} runs" if found.runs > 1 else ""
        said = "they differ" if found.findings else "one chain each" if found.runs > 1 else "one chain"
        console.print(f"{what}: {said}", markup=False)
        for one in found.findings:
            console.print(printable(one), markup=False)
    if found.findings:
        raise typer.Exit(ExitCode.FOUND)
