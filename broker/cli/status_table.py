"""The status document as tables that a person reads at a glance. Names from outside are escaped; nothing is trusted.

The document may come from another version: what is missing is shown as a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from broker.cli.holds_table import render_holds
from hive_qos.text import printable
from hive_qos.units import format_rate, format_size

JOBS_SHOWN_MAX = 20
NEEDS_SHOWN_MAX = 5
"""What fits on a screen. `--json` has all."""


def render(document: Mapping[str, Any]) -> RenderableType:
    """Everything: interfaces, jobs, alarms."""
    parts: list[RenderableType] = []
    for interface in _items(document, "interfaces"):
        if interface.get("asked") is True:
            parts += [_heading(document, interface), *_reasons(interface, only="storage")]
        elif interface.get("shaped") is False:
            parts.append(_unshaped(document, interface))
        else:
            parts += [_heading(document, interface), _classes(interface), *_reasons(interface), *_presence(interface)]
    if not parts:
        parts.append(Text("no interface is shaped"))
    jobs = list(_items(document, "jobs"))
    if jobs:
        parts += [Text(""), _jobs(jobs), *_shares(jobs)]
    parts += _needs(list(_items(document, "needs")))
    parts += [_schedule(schedule) for schedule in _items(document, "schedules")]
    parts += render_holds(document)
    alarms = list(_items(document, "alarms"))
    parts += [Text(""), *_guard(document)]
    if not alarms:
        parts.append(Text("no alarms", style="green"))
    for alarm in alarms:
        subject, text = printable(str(alarm.get("subject", ""))), printable(str(alarm.get("text", "")), length_max=500)
        parts.append(Text(f"! {subject}: {text}", style="bold red"))
    return Group(*parts)


def _heading(document: Mapping[str, Any], interface: Mapping[str, Any]) -> Text:
    reason = interface.get("capacity_reason")
    why = f": {printable(str(reason.get('text', '')))}" if isinstance(reason, Mapping) else ""
    name, host = printable(str(interface.get("name", "?"))), printable(str(document.get("host", "?")))
    line = Text.assemble(
        (name, "bold"),
        f" {printable(str(interface.get('direction', '')))} on {host}, ",
        (_rate(interface.get("capacity_bits_per_s")), "bold"),
        f" ({printable(str(interface.get('capacity_source', '?')))}{why})",
    )
    measured = interface.get("measured")
    if isinstance(measured, Mapping) and measured.get("carrier") is False:
        line.append(", no carrier", style="bold red")
    return line


def _unshaped(document: Mapping[str, Any], interface: Mapping[str, Any]) -> Text:
    """An interface that is not there: what was decided for it is in force nowhere. The alarm on it says why."""
    name, host = printable(str(interface.get("name", "?"))), printable(str(document.get("host", "?")))
    return Text.assemble((name, "bold"), f" on {host} is not shaped: see the alarm")


def _classes(interface: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("class", no_wrap=True)
    for name in ("sends", "wants", "promised", "may use", "waiting", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in _items(interface, "classes"):
        table.add_row(
            Text(printable(str(entry.get("name", "?"))), style="bold"),
            _rate(entry.get("throughput_bits_per_s")),
            _rate(entry.get("demand_bits_per_s")),
            _rate(entry.get("guarantee_bits_per_s")),
            _rate(entry.get("ceil_bits_per_s", entry.get("ceiling_bits_per_s"))),
            _size(entry.get("backlog_bytes")),
            _count(entry.get("dropped_packets")),
        )
    return table


def _reasons(interface: Mapping[str, Any], *, only: str = "") -> list[RenderableType]:
    """Why, a line a class: beside the figures they would not fit 80 columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for entry in _items(interface, "classes"):
        if only and entry.get("name") != only:
            continue
        reason = entry.get("reason")
        text = str(reason.get("text", "")) if isinstance(reason, Mapping) else ""
        grid.add_row(Text("  " + printable(str(entry.get("name", "?"))), style="bold"), Text(printable(text)))
    return [grid]


def _jobs(jobs: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("job", no_wrap=True)
    for column in ("programs", "sockets", "step", "announced", "credited", "still"):
        table.add_column(column, justify="right", no_wrap=True)
    for job, name in zip(jobs[:JOBS_SHOWN_MAX], _names(jobs, length_max=40), strict=False):
        bursts = list(_items(job, "bursts"))
        last: Mapping[str, Any] = bursts[-1] if bursts else {}
        remaining = last.get("remaining_s")
        table.add_row(
            Text(name, style="bold"),
            _count(job.get("sessions")),
            _count(job.get("sockets")),
            _count(last.get("step")),
            _size(last.get("announced_bytes")),
            _size(last.get("credited_bytes")),
            f"{remaining:.2f} s" if isinstance(remaining, (int, float)) else "-",
        )
    if len(jobs) > JOBS_SHOWN_MAX:
        table.caption = f"and {len(jobs) - JOBS_SHOWN_MAX} more; --json has them"
    return table


def _names(jobs: list[Mapping[str, Any]], *, length_max: int) -> list[str]:
    """What each job is called; with its user where several users have jobs of that name."""
    names = [str(job.get("job", "?")) for job in jobs]
    return [
        printable(name, length_max=length_max)
        + (f" of user {printable(str(job.get('uid', '?')))}" if names.count(name) > 1 else "")
        for job, name in zip(jobs, names, strict=True)
    ]


def _shares(jobs: list[Mapping[str, Any]]) -> list[RenderableType]:
    """What each job gets of its class, and why."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("job", no_wrap=True)
    for column in ("class", "sends", "wants", "gets"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for job, name in zip(jobs[:JOBS_SHOWN_MAX], _names(jobs, length_max=20), strict=False):
        for share in _items(job, "shares"):
            reason = share.get("reason")
            table.add_row(
                Text(name, style="bold"),
                Text(printable(str(share.get("class", "?")))),
                _rate(share.get("throughput_bits_per_s")),
                _rate(share.get("demand_bits_per_s")),
                _rate(share.get("share_bits_per_s")),
                Text(printable(str(reason.get("text", "")) if isinstance(reason, Mapping) else "")),
            )
    return [table] if table.row_count else []


def _presence(interface: Mapping[str, Any]) -> list[RenderableType]:
    presence = interface.get("presence")
    if not isinstance(presence, Mapping) or presence.get("present") is not True:
        return []
    reason = presence.get("reason")
    text = printable(str(reason.get("text", ""))) if isinstance(reason, Mapping) else ""
    return [Text(f"  somebody is on a call: {text}")]


def _schedule(schedule: Mapping[str, Any]) -> Text:
    until = schedule.get("until")
    end = f"until {printable(str(until))}" if until is not None else "always"
    zone = printable(str(schedule.get("timezone", "?")))
    return Text(f"schedule {printable(str(schedule.get('name', '?')))} holds {end} ({zone})")


def _needs(needs: list[Mapping[str, Any]]) -> list[RenderableType]:
    """What storage declares, a line a program and interface."""
    lines: list[RenderableType] = []
    for need in needs[:NEEDS_SHOWN_MAX]:
        remaining, at_risk = need.get("remaining_s"), need.get("replicas_at_risk")
        due = f", due in {remaining:.0f} s" if isinstance(remaining, (int, float)) else ""
        risk = f", {at_risk} objects with too few copies" if isinstance(at_risk, int) and at_risk else ""
        name = printable(str(need.get("interface", "?")))
        lines.append(Text(f"storage has {_size(need.get('backlog_bytes'))} to send through {name}{due}{risk}"))
    if len(needs) > NEEDS_SHOWN_MAX:
        lines.append(Text(f"and {len(needs) - NEEDS_SHOWN_MAX} more; --json has them"))
    return [Text(""), *lines] if lines else []


def _guard(document: Mapping[str, Any]) -> list[RenderableType]:
    """Whether somebody would open the ceilings if the daemon died; when nobody would, an alarm says so as well."""
    daemon = document.get("daemon")
    guard = daemon.get("guard") if isinstance(daemon, Mapping) else None
    if not isinstance(guard, Mapping):
        return []
    if guard.get("alive") is not True:
        return [Text("the guard does not live", style="bold red")]
    return [Text(f"the guard watches; it has opened the ceilings {_count(guard.get('openings'))} times")]


def _items(document: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    value = document.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _count(value: object) -> str:
    return str(value) if isinstance(value, int) else "-"


def _rate(value: object) -> str:
    return format_rate(value) if isinstance(value, (int, float)) else "-"


def _size(value: object) -> str:
    return format_size(value) if isinstance(value, (int, float)) else "-"
