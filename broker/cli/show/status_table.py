"""The status document as a screen that a person reads at a glance: at most 80 columns, wrapped and never cut.

    trainer-1: no alarms                    what is wrong, first
    eth0 sends at most ...                  each way of each interface: its classes, and in them their jobs
      figures of one class                  one line of figures
          why                               below it, a line a fact: promise, lending, limit and for how long
    program ...                             who sends and receives
    asked of others, asked of us, brokers   broker.cli.show.holds_table

On a terminal the lists are cut until all of it fits. Names from outside are escaped; nothing is trusted. The document
may come from another version: what is missing is shown as a dash. Colours repeat what the words mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from broker.cli.changing.setting_text import setting_text
from broker.cli.show.holds_table import SHOWN_MAX as HOLDS_SHOWN_MAX
from broker.cli.show.holds_table import render_holds
from broker.cli.show.program_table import program_rows
from broker.cli.show.screen import (
    NOTE_LENGTH_MAX,
    Note,
    capacity_text,
    code_of,
    count,
    items,
    limited_text,
    line,
    name_of,
    number,
    rate,
    reason_text,
    size,
    span,
)
from hive_qos.text import few, printable

NEEDS_SHOWN_MAX = 5
SILENT_PROMISES = ("not-measured", "not-claimed")
SILENT_LIMITS = ("idle", "itself", "hold")
SILENT_REASONS = ("idle", "link-is-free")
"""Nothing that a person has to know beside the figures and the other lines; `held` has more of a hold."""
FIRST = (0, 2, 3, 1, 4)
"""Of a class' figures, where room is short: sends, promised, limit, average, waiting."""


@dataclass(frozen=True)
class Room:
    """How much of each list is shown; `brief` keeps what limits and what is wrong, and names idle classes."""

    jobs: int
    programs: int
    holds: int = HOLDS_SHOWN_MAX
    brief: bool = False


ENOUGH = Room(jobs=20, programs=10)
"""In a pipe. `--json` has all."""
_ROOMS = (
    ENOUGH, Room(10, 6, 10), Room(6, 5, 5), Room(6, 5, 5, brief=True), Room(3, 3, 3, brief=True),
    Room(2, 2, 2, brief=True), Room(1, 1, 1, brief=True),
)  # fmt: skip
"""What is tried for a terminal, one after the other; the last is shown even where it is too long."""


def fitted(document: Mapping[str, Any], console: Console) -> RenderableType:
    """Everything, with as much of each list as the terminal has room for; the prompt needs a line, too."""
    for room in _ROOMS if console.is_terminal else (ENOUGH,):
        made = render(document, room)
        if len(console.render_lines(made, pad=False)) < console.height:
            break
    return made


def render(document: Mapping[str, Any], room: Room = ENOUGH) -> RenderableType:
    """Everything, in the order in which it matters."""
    parts: list[RenderableType] = [*_alarms(document)]
    interfaces = items(document, "interfaces")
    jobs = items(document, "jobs")
    for interface in interfaces:
        parts.append(Text(""))
        if interface.get("asked") is True:
            parts += [_heading(interface), *_storage_alone(interface)]
        elif interface.get("shaped") is False:
            parts.append(_unshaped(interface))
        else:
            parts += [_heading(interface), *_classes(interface, jobs, room)]
    if not interfaces:
        parts += [Text(""), Text("no interface is shaped")]
    parts += _jobs_without_figures(jobs, room)
    parts += program_rows(document, shown_max=room.programs)
    parts += _needs(items(document, "needs"))
    parts += _storage_programs(items(document, "storage_programs"))
    parts += [_schedule(schedule) for schedule in items(document, "schedules")]
    parts += _settings(document)
    parts += render_holds(document, shown_max=room.holds)
    return Group(*parts)


def _alarms(document: Mapping[str, Any]) -> list[RenderableType]:
    """What is wrong; the code, by which the documents list it, in brackets."""
    host, alarms = printable(str(document.get("host", "?"))), items(document, "alarms")
    number = "no alarms" if not alarms else "1 alarm" if len(alarms) == 1 else f"{len(alarms)} alarms"
    parts: list[RenderableType] = [Text.assemble((host, "bold"), ": ", (number, "green" if not alarms else "bold red"))]
    for alarm in alarms:
        subject, code = (printable(str(alarm.get(key, "?"))) for key in ("subject", "code"))
        text = printable(str(alarm.get("text", "")), length_max=NOTE_LENGTH_MAX)
        parts.append(Text(f"! {subject}: {text} [{code}]", style="bold red"))
    return [*parts, *_watchdog(document)]


def _watchdog(document: Mapping[str, Any]) -> list[RenderableType]:
    """Whether somebody would open the ceilings if the daemon died, where that is not as it should be."""
    daemon = document.get("daemon")
    watchdog = daemon.get("watchdog") if isinstance(daemon, Mapping) else None
    if not isinstance(watchdog, Mapping):
        return []
    if watchdog.get("alive") is not True:
        return [Text("the watchdog does not run", style="bold red")]
    if watchdog.get("openings") in (0, None):
        return []
    return [Text(f"the watchdog has opened the ceilings {count(watchdog.get('openings'))} times")]


def _heading(interface: Mapping[str, Any]) -> Text:
    name = name_of(interface.get("name"))
    does = "receives" if interface.get("direction") == "ingress" else "sends"
    shown = Text.assemble((name, "bold"), f" {does} at most {capacity_text(interface)}")
    measured = interface.get("measured")
    if isinstance(measured, Mapping) and measured.get("carrier") is False:
        shown.append(", no carrier", style="bold red")
    return shown


def _unshaped(interface: Mapping[str, Any]) -> Text:
    """An interface that is not there: what was decided for it is in force nowhere. The alarm on it says why."""
    return Text.assemble((printable(str(interface.get("name", "?"))), "bold"), " is not shaped: see the alarm")


def _classes(interface: Mapping[str, Any], jobs: list[Mapping[str, Any]], room: Room) -> list[RenderableType]:
    classes = items(interface, "classes")
    parts: list[RenderableType] = [
        line("class", "sends", _window(classes), "promised", "limit", "waiting", first=FIRST)
    ]
    shown, resting = 0, []
    for entry in classes:
        mine = _of_class(jobs, interface=interface.get("name"), traffic_class=entry.get("name"))
        if room.brief and not mine and code_of(entry.get("limited_by")) == "idle":
            resting.append(name_of(entry.get("name")))
            continue
        parts += _class(entry, shown={code_of(share.get("limited_by")) for _, _, share in mine}, brief=room.brief)
        fits = mine[: max(0, room.jobs - shown)]
        for name, job, share in fits:
            parts += _job(name, job, share, brief=room.brief)
        shown += len(fits)
        if len(mine) > len(fits):
            parts.append(Note(f"and {len(mine) - len(fits)} more jobs: hive-qos status --json"))
    if not resting:
        return parts
    return [Text("all its classes are idle")] if len(resting) == len(classes) else [*parts, _idle(resting)]


def _idle(names: Iterable[str]) -> Text:
    return Text(f"idle: {', '.join(names)}")


def _window(classes: list[Mapping[str, Any]]) -> str:
    """How long the averages are: the window, and less while the broker has not run for so long."""
    windows = {entry.get("window_s") for entry in classes}
    covered = [over for entry in classes if isinstance(over := entry.get("average_over_s"), (int, float))]
    window = windows.pop() if len(windows) == 1 else None
    if not isinstance(window, (int, float)):
        return "average"
    return f"{min([*covered, window]):.0f} s avg"


def _class(entry: Mapping[str, Any], *, shown: Collection[str], brief: bool) -> list[RenderableType]:
    """Its figures and their verdicts; those of its jobs, `shown` below, are left out."""
    limited_by = entry.get("limited_by")
    idle = code_of(limited_by) == "idle"
    ceil = entry.get("usable_bits_per_s", entry.get("ceil_bits_per_s", entry.get("ceiling_bits_per_s")))
    parts: list[RenderableType] = [
        line(
            printable(str(entry.get("name", "?"))),
            "idle" if idle else rate(entry.get("throughput_bits_per_s")),
            rate(entry.get("average_bits_per_s")),
            rate(entry.get("guarantee_bits_per_s")),
            rate(ceil),
            size(entry.get("backlog_bytes")),
            style="bold",
            first=FIRST,
        )
    ]
    if limited_by is None:  # an earlier version, or inbound: only the decision is known
        silent = code_of(entry.get("reason")) in SILENT_REASONS
        return parts if silent else [*parts, *_notes(reason_text(entry.get("reason")))]
    if idle:
        return parts
    promise, lending = entry.get("promise"), printable(str(entry.get("lending", "")))
    missed = code_of(promise) in ("missed", "owed")
    below = (entry.get("throughput_bits_per_s") or 0) < (entry.get("guarantee_bits_per_s") or 0)
    if missed or (below and not brief and code_of(promise) not in SILENT_PROMISES):
        parts.append(Note(reason_text(promise), style="bold red" if missed else ""))
    parts += _notes("" if brief else lending, printable(str(entry.get("held", "")), length_max=NOTE_LENGTH_MAX))
    if code_of(limited_by) not in {*SILENT_LIMITS, *shown}:
        parts += _notes(limited_text(entry))
    return parts


def _of_class(
    jobs: list[Mapping[str, Any]], *, interface: object, traffic_class: object
) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """The jobs of a class at an interface, each with its name and its figures there, the busiest first."""
    names = [str(job.get("job", "?")) for job in jobs]
    found = [
        (_called(job, name, twice=names.count(name) > 1), job, share)
        for job, name in zip(jobs, names, strict=True)
        for share in items(job, "shares")
        if share.get("class") == traffic_class and share.get("interface", interface) == interface
    ]
    return sorted(found, key=lambda one: -number(one[2].get("throughput_bits_per_s")))


def _called(job: Mapping[str, Any], name: str, *, twice: bool) -> str:
    """What a job is called; with its user where several users have jobs of that name."""
    return printable(name) + (f" of user {printable(str(job.get('uid', '?')))}" if twice else "")


def _job(name: str, job: Mapping[str, Any], share: Mapping[str, Any], *, brief: bool) -> list[RenderableType]:
    """The figures that its class has, the one verdict on what limits it, and what it has announced."""
    limited_by = share.get("limited_by")
    idle = code_of(limited_by) == "idle"
    promised = share.get("guarantee_bits_per_s")
    parts: list[RenderableType] = [
        line(
            f"  {name}",
            "idle" if idle else rate(share.get("throughput_bits_per_s")),
            rate(share.get("average_bits_per_s")),
            rate(promised) if promised else "-",
            rate(share.get("usable_bits_per_s", share.get("ceil_bits_per_s"))),
            size(share.get("backlog_bytes")),
            first=FIRST,
        )
    ]
    if limited_by is None:
        parts += _notes(reason_text(share.get("reason")))
    elif not idle:
        parts += _notes(limited_text(share))
    if share.get("enforced") is False:
        parts += _notes("its share is not enforced: it has no leaf of its own")
    return parts if brief else [*parts, *_notes("; ".join((_programs_of(job), *_burst(job))))]


def _programs_of(job: Mapping[str, Any]) -> str:
    number = job.get("sessions")
    return "1 program" if number == 1 else f"{count(number)} programs"


def _burst(job: Mapping[str, Any]) -> list[str]:
    """What it has announced last, and what of that is not believed."""
    bursts = items(job, "bursts")
    if not bursts:
        return []
    last = bursts[-1]
    remaining, announced, counts = (last.get(key) for key in ("remaining_s", "announced_bytes", "credited_bytes"))
    text = f"step {count(last.get('step'))} announced {size(announced)}"
    if isinstance(remaining, (int, float)):
        text += f", due in {remaining:.2f} s" if remaining >= 0 else f", late by {-remaining:.2f} s"
    if isinstance(counts, int) and isinstance(announced, int) and counts < announced:
        text += f", of which {size(counts)} count: {reason_text(last.get('credit_reason'))}"
    return [text]


def _jobs_without_figures(jobs: list[Mapping[str, Any]], room: Room) -> list[RenderableType]:
    """Jobs that are connected and have nothing in any class yet."""
    names = [
        f"{_called(job, str(job.get('job', '?')), twice=False)} ({_programs_of(job)})"
        for job in jobs
        if not items(job, "shares")
    ]
    if not names:
        return []
    return [Text(f"connected, nothing registered: {few(names, at_most=room.jobs)}")]


def _storage_alone(interface: Mapping[str, Any]) -> list[RenderableType]:
    """For an inbound direction with holds: why storage is held back, or not."""
    return [
        part
        for entry in items(interface, "classes")
        if entry.get("name") == "storage"
        for part in _notes(f"storage: {reason_text(entry.get('reason'))}")
    ]


def _schedule(schedule: Mapping[str, Any]) -> Text:
    until = schedule.get("until")
    end = f"until {printable(str(until))}" if until is not None else "always"
    zone = printable(str(schedule.get("timezone", "?")))
    return Text(f"schedule {printable(str(schedule.get('name', '?')))} holds {end} ({zone})")


def _settings(document: Mapping[str, Any]) -> list[RenderableType]:
    """What counts instead of the file, and for how long."""
    configuration = document.get("configuration")
    found = items(configuration, "settings") if isinstance(configuration, Mapping) else []
    return [Text(f"set: {setting_text(one)}") for one in found]


def _needs(needs: list[Mapping[str, Any]]) -> list[RenderableType]:
    """What storage declares, a line a program and interface."""
    lines: list[RenderableType] = []
    for need in needs[:NEEDS_SHOWN_MAX]:
        remaining, at_risk = need.get("remaining_s"), need.get("replicas_at_risk")
        due = f", due in {span(remaining)}" if isinstance(remaining, (int, float)) else ""
        if isinstance(need.get("pace_bits_per_s"), int):
            end_s = need.get("projected_s")
            done = (
                "it does not get less" if end_s is None else f"done in {span(end_s)} at {rate(need['pace_bits_per_s'])}"
            )
            due += f", {done}"
        risk = f", {at_risk} objects with too few copies" if isinstance(at_risk, int) and at_risk else ""
        name = printable(str(need.get("interface", "?")))
        lines.append(Text(f"storage has {size(need.get('backlog_bytes'))} to send through {name}{due}{risk}"))
    if len(needs) > NEEDS_SHOWN_MAX:
        lines.append(Text(f"and {len(needs) - NEEDS_SHOWN_MAX} more; --json has them"))
    return [Text(""), *lines] if lines else []


def _storage_programs(programs: list[Mapping[str, Any]]) -> list[RenderableType]:
    """How the programs of the adapter do, a line each."""
    lines: list[RenderableType] = []
    for one in programs[:NEEDS_SHOWN_MAX]:
        name, kind = printable(str(one.get("name", "?"))), printable(str(one.get("kind", "?")))
        text, limit = printable(str(one.get("text") or "")), one.get("limit_bits_per_s")
        if one.get("state") != "working":
            lines.append(Text(f"{name}: {text or printable(str(one.get('state')))}", style="bold red"))
            continue
        parts = [f"{size(one.get('upload_bytes'))} to send"]
        parts += [f"{size(one['waiting_bytes'])} for hosts that are away"] if one.get("waiting_bytes") else []
        parts += [f"{size(one['download_bytes'])} to get"] if one.get("download_bytes") else []
        parts += [f"limits itself to {rate(limit)}"] if limit is not None else []
        parts += [text] if text else []
        lines.append(Text(f"{name} ({kind}): {', '.join(parts)}"))
    return [Text(""), *lines] if lines else []


def _notes(*texts: str) -> Iterable[RenderableType]:
    return [Note(text) for text in texts if text]
