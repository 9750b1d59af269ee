"""`hive-qos report`: what was carried, lent, borrowed and repaid, by whom, in hours and months."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli.options import SocketOption
from broker.model.usage import GROUPS, HOUR_S, Usage, keys_of

FIGURES = Usage.__struct_fields__
_UNITS = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_FORMS = 'write a time such as "2026-11-01" or "2026-11-01T08:00", or how long ago, such as "24h" or "7d"'


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
    now = datetime.now().astimezone()
    since_s, until_s = (
        _time(text, now=now, option=option) for text, option in ((since, "--since"), (until, "--until"))
    )
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
        from rich.console import Console

        from broker.cli.show.report_table import render

        Console(highlight=False).print(render(document, groups))


def _document(
    socket: Path | None, state_dir: Path | None, *, since_s: float, until_s: float, by: Sequence[str]
) -> dict[str, Any]:
    """The broker's answer, or that of its file."""
    if state_dir is not None:
        import msgspec

        from broker.accounting import database
        from broker.api.schema import UsageReport

        rows = database.read(state_dir / database.NAME, since_s=since_s, until_s=until_s, by=by)
        found: dict[str, Any] = msgspec.to_builtins(UsageReport(since_s=since_s, until_s=until_s, rows=rows))
        return found
    from broker import client

    question = urllib.parse.urlencode({"since_s": since_s, "until_s": until_s, "by": ",".join(by)})
    body = client.fetch(f"/v1/usage?{question}", socket_path=None if socket is None else str(socket), timeout_s=10.0)
    answered: dict[str, Any] = json.loads(body)
    return answered


def _time(text: str, *, now: datetime, option: str) -> float:
    """Seconds since 1970 of "now", of a local time, or of how long ago; the hour that it lies in counts.

    Raises:
        BadParameter: of none of these forms.
    """
    if text == "now":
        return time.time()
    ago = re.fullmatch(r"([0-9.]+)\s*(min|h|d|w)", text.strip())
    try:
        if ago is not None:
            found = now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        else:
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r}: {_FORMS}", param_hint=option) from None
    return found.timestamp() // HOUR_S * HOUR_S


def _print_csv(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    keys = keys_of(by)
    names = [{"hour_s": "hour", "day_s": "day"}.get(key, key) for key in keys]
    writer.writerow([*names, *FIGURES])
    for row in rows:
        times = {key: datetime.fromtimestamp(row[key], UTC).isoformat() for key in ("hour_s", "day_s") if key in row}
        given = row | times
        writer.writerow([*(given.get(key, "") for key in keys), *(row.get(name, 0) for name in FIGURES)])
