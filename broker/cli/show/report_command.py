"""`hive-qos report`: what was carried, lent, borrowed and repaid, by whom, in hours and months."""

from __future__ import annotations

import csv
import json
import sys
import time
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli.options import SocketOption, seconds_of
from broker.model.usage import GROUPS, HOUR_S, Usage, keys_of

FIGURES = Usage.__struct_fields__


def report(
    socket: SocketOption = None,
    since: Annotated[str, typer.Option(help="From when: a local time, or how long ago: 24h, 7d, 4w.")] = "24h",
    until: Annotated[str, typer.Option(help="Until when, in the same forms.")] = "now",
    by: Annotated[str, typer.Option(help=f"What divides it: one or more of {', '.join(GROUPS)}.")] = "class,job",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with bytes and times in UTC.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as JSON.")] = False,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Read the file of a broker that does not run, as root.")
    ] = None,
) -> None:
    """Show what each class, job and user has sent, lent, borrowed and got back.

    Bytes on the wire, by the hour, kept for thirteen months. The last minute may be missing.

    \b
    Examples:
      hive-qos report
      hive-qos report --since 7d --by day,class
      hive-qos report --since 2026-11-01 --until 2026-12-01 --by user,job --csv > november.csv
    """
    since_s, until_s = (_hour(text, option=option) for text, option in ((since, "--since"), (until, "--until")))
    if since_s >= until_s:
        raise typer.BadParameter("ends before it begins", param_hint="--until")
    groups = tuple(part.strip() for part in by.split(",") if part.strip())
    if unknown := [one for one in groups if one not in GROUPS]:
        raise typer.BadParameter(f"{unknown[0]!r}: one or more of {', '.join(GROUPS)}", param_hint="--by")
    document = _document(socket, state_dir, since_s=since_s, until_s=until_s, by=groups)
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    elif as_csv:
        _print_csv(document["rows"], groups)
    else:
        from broker.cli.show.report_table import render
        from broker.cli.show.screen import Output

        Output().print(render(document, groups))


def _document(
    socket: Path | None, state_dir: Path | None, *, since_s: float, until_s: float, by: Sequence[str]
) -> dict[str, Any]:
    """The broker's answer, or that of its file."""
    if state_dir is not None:
        import msgspec

        from broker.accounting import database
        from broker.api.documents.schema import UsageReport

        rows = database.read(state_dir / database.NAME, since_s=since_s, until_s=until_s, by=by)
        found: dict[str, Any] = msgspec.to_builtins(UsageReport(since_s=since_s, until_s=until_s, rows=rows))
        return found
    from broker import client

    question = urllib.parse.urlencode({"since_s": since_s, "until_s": until_s, "by": ",".join(by)})
    body = client.fetch(f"/v1/usage?{question}", socket_path=None if socket is None else str(socket), timeout_s=10.0)
    answered: dict[str, Any] = json.loads(body)
    return answered


def _hour(text: str, *, option: str) -> float:
    """Seconds since 1970: now, or the beginning of the hour that a time lies in."""
    return time.time() if text == "now" else seconds_of(text, option=option) // HOUR_S * HOUR_S


def _print_csv(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    keys = keys_of(by)
    names = [{"hour_s": "hour", "day_s": "day"}.get(key, key) for key in keys]
    writer.writerow([*names, *FIGURES])
    for row in rows:
        times = {key: datetime.fromtimestamp(row[key], UTC).isoformat() for key in ("hour_s", "day_s") if key in row}
        given = row | times
        writer.writerow([*(given.get(key, "") for key in keys), *(row.get(name, 0) for name in FIGURES)])
