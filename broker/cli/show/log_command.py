"""`hive-qos log`: what the broker has decided and met lately."""

from __future__ import annotations

import enum
import json
import sys
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from broker import client
from broker.cli.options import SocketOption, seconds_of
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError

SHOWN, POLL_S = 50, 0.5
"""Events, where nobody says how many. How often it is asked for new ones: as soon as a person notices."""


class Level(enum.StrEnum):
    """How grave an event is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log(
    socket: SocketOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")] = False,
    since: Annotated[
        str | None, typer.Option(help="From when: a local time, or how long ago: 90s, 10min, 2h, 1d.")
    ] = None,
    level: Annotated[Level, typer.Option(help="This and what is graver.")] = Level.DEBUG,
    event: Annotated[list[str] | None, typer.Option(help="Only this event; again for more.")] = None,
    interface: Annotated[str | None, typer.Option(help="Only what concerns this interface.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The last so many (default: 50, or all since then).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one event a line as JSON.")] = False,
) -> None:
    """Show the broker's decisions and events, in words.

    The broker keeps the last of each level while it runs, also without a journal. They are alarms, links that carry
    less, limits that change, programs that come and go. Older ones are in the journal: journalctl -u hive-qos.

    \b
    Examples:
      hive-qos log
      hive-qos log --follow --level warning
      hive-qos log --since 10min --interface eth0
      hive-qos log --event limit-changed --event capacity-changed
      hive-qos log --json | jq 'select(.event == "alarm-raised") | .keys'
    """
    path = None if socket is None else str(socket)
    since_s = 0.0 if since is None else seconds_of(since, option="--since")
    names = set(event or ())
    most = limit if limit is not None else SHOWN if since is None else None

    def wanted(one: Mapping[str, Any]) -> bool:
        keys = one.get("keys")
        concerned = isinstance(keys, Mapping) and keys.get("interface") == interface
        return (not names or one.get("event") in names) and (interface is None or concerned)

    document = _ask(path, since_s=since_s, level=level)
    found = [one for one in document["events"] if wanted(one)]
    shown = found if most is None else found[-most:]
    if len(shown) < len(found) and not as_json:
        typer.echo(f"{len(found) - len(shown)} earlier events are not shown: -n {len(found)}", err=True)
    _print(shown, as_json=as_json)
    if follow:
        _follow(path, document, since_s=since_s, level=level, wanted=wanted, as_json=as_json)
    elif not found and not as_json:
        typer.echo("no such event since the broker began; older ones: journalctl -u hive-qos", err=True)


def _follow(
    path: str | None, document: Mapping[str, Any], *, since_s: float, level: str, wanted: Any, as_json: bool
) -> None:
    """Print what is new, across restarts of the broker: the numbers of another one begin anew."""
    began_s, after, lost = document["began_s"], _last(document, 0), False
    while True:
        time.sleep(POLL_S)
        try:
            document = _ask(path, after=after, since_s=0.0 if after else since_s, level=level)
            if document["began_s"] != began_s:
                began_s, after = document["began_s"], 0
                document = _ask(path, after=after, since_s=since_s, level=level)
            lost, after = False, _last(document, after)
        except BrokerUnavailableError as error:
            if not lost:
                typer.echo(f"hive-qos: {error}; trying again", err=True)
            lost = True
            continue
        _print([one for one in document["events"] if wanted(one)], as_json=as_json)


def _last(document: Mapping[str, Any], before: int) -> int:
    return max((int(one["number"]) for one in document["events"]), default=before)


def _ask(path: str | None, **question: object) -> dict[str, Any]:
    target = f"/v1/log?{urllib.parse.urlencode(question)}"
    try:
        document: dict[str, Any] = json.loads(client.fetch(target, socket_path=path))
        document["began_s"], document["events"]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerRejectedError(f"the broker's log cannot be read: {error}") from error
    return document


def _print(events: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for one in events:
            sys.stdout.write(json.dumps(one) + "\n")
    else:
        from broker.cli.show.log_lines import event_lines
        from broker.cli.show.screen import Output

        console = Output()
        for one in events:
            console.print(event_lines(one))
    sys.stdout.flush()
