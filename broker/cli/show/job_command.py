"""`hive-qos job`: a whole group, by asking any of its ranks on this host; or what a volatile one did, by its tapes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli.exits import ExitCode, say
from broker.cli.options import JsonOption

SCHEMA = 1
LIMIT_S = 2.0
"""For each rank to answer in: a few round trips of the Internet, and a transport's thread that was held up."""
LIMIT_S_MIN, LIMIT_S_MAX = 0.1, 30.0
"""Less than a round trip tells nothing; nobody looks at a screen that stands still for longer."""


def job(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME | FILE...]", help="A job, where several run here; with --tape: tapes."),
    ] = None,
    tape: Annotated[
        bool, typer.Option("--tape", help="Replay tapes of a volatile group's members (HIVE_TAPE), and check them.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second until q or Ctrl-C.")] = False,
    limit_s: Annotated[
        float, typer.Option("--limit", help="How many seconds each rank has to answer, 0.1 to 30.")
    ] = LIMIT_S,
    as_json: JsonOption = False,
) -> None:
    """Show the group of a training job: who is in it, who is late and why, and what its links measure.

    A rank on this host asks all others over the group's own connections. Those who did not answer are named. Only the
    user whose job it is can ask, and root. It needs no broker.

    With --tape it asks nobody. It tells who came and went, and which steps were committed. It names contradictions by
    file and line: the exit code is 9 then.

    \b
    Examples:
      hive-qos job
      hive-qos job llm --watch
      hive-qos job --tape tapes/*
      hive-qos job --json | jq '.groups[].members[] | {rank, waits, saved_bytes, volatile}'
    """
    if not LIMIT_S_MIN <= limit_s <= LIMIT_S_MAX:  # nan as well, which typer's own bounds let pass
        raise typer.BadParameter(f"{limit_s:g} is not within {LIMIT_S_MIN:g} to {LIMIT_S_MAX:g}", param_hint="--limit")
    if tape:
        return _replay([Path(one) for one in names or ()], watch=watch, as_json=as_json)
    if names and len(names) > 1:
        raise typer.BadParameter("name one job, or replay tapes with --tape", param_hint="NAME")
    document = _document(names[0] if names else "", limit_s)
    if as_json:
        while True:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
            if not watch:
                return
            time.sleep(1.0)
            document = _once_it_runs(document["job"], limit_s)
    from broker.cli.show.job_table import render
    from broker.cli.show.screen import Output

    console = Output()
    if watch:
        from broker.cli.show.live import Latest
        from broker.cli.show.live import watch as paint
        from hive_qos.errors import TransportError

        # By its name from now on: it may start again, and another one beside it.
        latest = Latest(lambda: _asked_again(document["job"], limit_s), render, who="rank", silent=TransportError)
        paint(latest, console)
    else:
        console.print(render(document))


def _replay(tapes: Sequence[Path], *, watch: bool, as_json: bool) -> None:
    from broker.cli.show.tape_table import lines
    from transport.volatile.record.replay import replay

    if watch or not tapes:
        raise typer.BadParameter("it does not go with --watch" if watch else "name the tapes", param_hint="--tape")
    try:
        document = replay(tapes)
    except FileNotFoundError as problem:
        say(f"{problem.filename}: no such tape; members write theirs where HIVE_TAPE is the name of a folder")
        raise typer.Exit(ExitCode.SYSTEM) from None
    for line in [json.dumps(document)] if as_json else lines(document):
        sys.stdout.write(line + "\n")
    if document["violations"]:
        raise typer.Exit(ExitCode.FOUND)


def _document(name: str, limit_s: float) -> dict[str, Any]:
    """All groups of the one job: two runs of one name are two groups.

    Raises:
        TransportError: no job runs here.
        BadParameter: there are several, or none of this name.
    """
    from hive_qos.errors import TransportError
    from hive_qos.text import printable
    from transport.inspection import jobs

    members = jobs.members()
    known = sorted({str(one.get("job")) for _, one in members})
    if not known:
        raise TransportError("no rank of a job of yours answers on this host; start one, or ask where one runs")
    shown = ", ".join(printable(one) for one in known)
    if name and name not in known:
        raise typer.BadParameter(f"no job {printable(name)!r} runs here; use one of {shown}", param_hint="NAME")
    if not name and len(known) > 1:
        raise typer.BadParameter(f"several jobs run here; name one of {shown}", param_hint="NAME")
    return _of(name or known[0], members, limit_s)


def _asked_again(job: str, limit_s: float) -> dict[str, Any]:
    """Raises: TransportError: no rank of it answers."""
    from hive_qos.errors import TransportError
    from transport.inspection import jobs

    document = _of(job, jobs.members(), limit_s)
    if not document["groups"]:
        raise TransportError(f"no rank of job {job} answers on this host any more")
    return document


def _of(job: str, members: Sequence[tuple[Path, dict[str, Any]]], limit_s: float) -> dict[str, Any]:
    mine = [(path, one) for path, one in members if str(one.get("job")) == job]
    return {"schema": SCHEMA, "job": job, "groups": _groups(mine, limit_s)}


def _once_it_runs(job: str, limit_s: float) -> dict[str, Any]:
    """Wait until a rank of it answers, as after a restart; say once that nobody does."""
    from hive_qos.errors import TransportError

    said = False
    while True:
        try:
            return _asked_again(job, limit_s)
        except TransportError as error:
            if not said:
                say(f"{error}; trying again")
            said = True
            time.sleep(1.0)


def _groups(members: Sequence[tuple[Path, dict[str, Any]]], limit_s: float) -> list[dict[str, Any]]:
    """The document of each group: of those whose members were not told of by a rank that was asked before."""
    from hive_qos.errors import PeerError
    from transport.inspection import jobs

    groups: list[dict[str, Any]] = []
    seen: set[str] = set()
    for path, own in members:
        if "id" in own and str(own["id"]) in seen:
            continue
        try:
            found = jobs.ask(path, jobs.GROUP, limit_s=limit_s)
        except (OSError, PeerError) as problem:  # it answered a moment ago
            found = {"members": [own], "silent": [{"why": f"the rank that was asked ended: {problem}"}]}
        listed = found.get("members")
        seen |= {str(one.get("id")) for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
        groups.append(found)
    # A rank whose thread does not answer knows no others: where they answer, they say so.
    return [one for one in groups if one.get("members")] or groups
