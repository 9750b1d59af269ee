"""`hive-qos set`, `unset`, `pause` and `resume`: changes for a while, beside the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from broker.cli import completion
from broker.cli.changing.durations import duration_s, shown_s
from broker.cli.changing.setting_text import setting_text
from broker.cli.options import SocketOption
from broker.client import http
from broker.policy.settings import KEYS, check_target, read_settings
from hive_qos.text import printable

DEFAULT_FOR = "1h"
"""Of a setting whose end nobody names: a change that is forgotten ends by itself."""

KindArgument = Annotated[
    str | None, typer.Argument(metavar="KIND", help="class, job or interface.", autocompletion=completion.kinds)
]
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Its name, such as storage, llm or eth0.", autocompletion=completion.names),
]


def set_(
    kind: KindArgument = None,
    name: NameArgument = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="As in the file, without quotes.")
    ] = None,
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long: 10m, 2h, 3d, at most 30 days.")
    ] = DEFAULT_FOR,
    keep: Annotated[bool, typer.Option("--keep", help="Until `hive-qos unset`.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show what is set, and for how long still.")] = False,
    socket: SocketOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is set as JSON.")] = False,
) -> None:
    """Change a setting for a while, without touching the file.

    It is in force at once, and judged like the file: guarantees that no longer fit are refused. A restart does not end
    it: it lies in the broker's state directory. A class has guarantee, floor, ceiling, weight and priority, a job
    guarantee, ceiling and weight, an interface egress and ingress. It needs root or the admin group.

    \b
    Examples:
      hive-qos set class storage guarantee=25% --for 2h
      hive-qos set job nightly weight=2 --keep
      hive-qos set interface eth0 egress=80Mbit/s
      hive-qos set --list
    """
    if list_ or kind is None:
        if kind is not None or settings:
            raise typer.BadParameter("--list takes no settings")
        if not list_:
            raise typer.BadParameter("name a kind, a name and KEY=VALUE, or --list")
        _show(_settings(socket), as_json=as_json)
        return
    if name is None or not settings:
        raise typer.BadParameter(f"name what to set, such as: hive-qos set {printable(kind)} NAME {_example(kind)}")
    read_settings(kind, name, settings, until_s=None)  # before anybody is asked: a typing error needs no broker
    fields = [("kind", kind), ("name", name), *(("set", text) for text in settings)]
    for_s = None if keep else duration_s(for_, option="--for")
    if for_s is not None:
        fields.append(("for_s", f"{for_s:g}"))
    done = _post("/v1/set", socket, fields)
    if as_json:
        _show(_settings(socket), as_json=True)
        return
    until = f"for {shown_s(for_s)}" if for_s is not None else f"until `hive-qos unset {kind} {printable(name)}`"
    but = f"; but {done.note}" if done.note else ""
    typer.echo(printable(f"{done.done}, {until}; the file is unchanged{but}", length_max=1000))


def unset(
    kind: KindArgument = None,
    name: NameArgument = None,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Only these; all where none is named.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Everything that is set.")] = False,
    socket: SocketOption = None,
) -> None:
    """Let the file count again.

    \b
    Examples:
      hive-qos unset class storage
      hive-qos unset class storage guarantee
      hive-qos unset --all
    """
    if all_ == (kind is not None):
        raise typer.BadParameter("name a kind and a name, or --all")
    if all_:
        _say(_post("/v1/unset", socket, []))
        return
    if kind is None or name is None:
        raise typer.BadParameter(f"name what to unset, such as: hive-qos unset {printable(str(kind))} NAME")
    check_target(kind, name)
    _say(_post("/v1/unset", socket, [("kind", kind), ("name", name), *(("key", key) for key in keys or ())]))


def pause(
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 60s, 10m, at most a day.")] = "10m",
    socket: SocketOption = None,
) -> None:
    """Limit nobody for a while.

    Every ceiling opens to the line's rate. Classes and queues stay, so no packet is lost. Limits come back by
    themselves, at `hive-qos resume`, at every change of policy, and at a restart. It needs root or the admin group.

    \b
    Examples:
      hive-qos pause
      hive-qos pause --for 60s && iperf3 -c host; hive-qos resume
    """
    _say(_post("/v1/pause", socket, [("for_s", f"{duration_s(for_, option='--for'):g}")]))


def resume(socket: SocketOption = None) -> None:
    """Limit again, after `hive-qos pause`.

    \b
    Example:
      hive-qos resume
    """
    _say(_post("/v1/resume", socket, []))


def _post(path: str, socket: Path | None, fields: Sequence[tuple[str, str]]) -> http.Done:
    query = f"?{urlencode(fields)}" if fields else ""
    return http.post(path + query, socket_path=None if socket is None else str(socket))


def _say(done: http.Done) -> None:
    typer.echo(printable(str(done), length_max=1000))


def _settings(socket: Path | None) -> list[Mapping[str, Any]]:
    found = http.status(None if socket is None else str(socket)).get("configuration", {}).get("settings", [])
    return [one for one in found if isinstance(one, dict)]


def _show(settings: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"settings": list(settings)}))
        return
    for one in settings:
        typer.echo(setting_text(one))
    if not settings:
        typer.echo("nothing is set; the file counts")


def _example(kind: str) -> str:
    return f"{KEYS[kind][0]}=..." if kind in KEYS else "KEY=VALUE"
