"""The status document as a screen that a person reads at a glance: at most 80 columns, wrapped and never cut.

    trainer-1: no alarms                    what is wrong, first
    eth0 sends at most ...                  each way of each interface: its classes, and in them their jobs
      figures of one class                  one line of figures
          why                               below it, a line a fact: promise, lending, limit
    program ...                             who sends and receives
    asked of others, asked of us, brokers   broker.cli.show.holds_table

Names from outside are escaped; nothing is trusted. The document may come from another version: what is missing is
shown as a dash. Colours repeat what the words mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from broker.cli.show.holds_table import render_holds
from broker.cli.show.screen import COLUMN, NOTE_LENGTH_MAX, beside, count, items, line, note, rate, reason_text, size
from hive_qos.text import printable

JOBS_SHOWN_MAX = 20
NEEDS_SHOWN_MAX = 5
PROGRAMS_SHOWN_MAX = 10
"""What fits on a screen. `--json` has more."""
SILENT_PROMISES = ("not-measured", "not-claimed")
SILENT_LIMITS = ("idle", "itself", "hold")
SILENT_REASONS = ("idle", "link-is-free")
"""Nothing that a person has to know beside the figures and the other lines; `held` has more of a hold."""


def render(document: Mapping[str, Any]) -> RenderableType:
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
            parts += [_heading(interface), *_classes(interface, jobs)]
    if not interfaces:
        parts += [Text(""), Text("no interface is shaped")]
    parts += _jobs_without_figures(jobs)
    parts += _programs(document)
    parts += _needs(items(document, "needs"))
    parts += [_schedule(schedule) for schedule in items(document, "schedules")]
    parts += render_holds(document)
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
    name, capacity = printable(str(interface.get("name", "?"))), rate(interface.get("capacity_bits_per_s"))
    does = "receives" if interface.get("direction") == "ingress" else "sends"
    text = reason_text(interface.get("capacity_reason"))
    most = text if text.startswith(capacity) else f"{capacity}: {text}" if text else capacity
    shown = Text.assemble((name, "bold"), f" {does} at most {most}")
    measured = interface.get("measured")
    if isinstance(measured, Mapping) and measured.get("carrier") is False:
        shown.append(", no carrier", style="bold red")
    return shown


def _unshaped(interface: Mapping[str, Any]) -> Text:
    """An interface that is not there: what was decided for it is in force nowhere. The alarm on it says why."""
    return Text.assemble((printable(str(interface.get("name", "?"))), "bold"), " is not shaped: see the alarm")


def _classes(interface: Mapping[str, Any], jobs: list[Mapping[str, Any]]) -> list[RenderableType]:
    classes = items(interface, "classes")
    parts: list[RenderableType] = [line("class", "sends", _window(classes), "promised", "limit", "waiting")]
    shown = 0
    for entry in classes:
        mine = _of_class(jobs, interface=interface.get("name"), traffic_class=entry.get("name"))
        parts += _class(entry, shown={_code(share.get("limited_by")) for _, _, share in mine})
        fits = mine[: max(0, JOBS_SHOWN_MAX - shown)]
        for name, job, share in fits:
            parts += _job(name, job, share)
        shown += len(fits)
        if len(mine) > len(fits):
            parts.append(note(f"and {len(mine) - len(fits)} more jobs; --json has them"))
    return parts


def _window(classes: list[Mapping[str, Any]]) -> str:
    """How long the averages are: the window, and less while the broker has not run for so long."""
    windows = {entry.get("window_s") for entry in classes}
    covered = [over for entry in classes if isinstance(over := entry.get("average_over_s"), (int, float))]
    window = windows.pop() if len(windows) == 1 else None
    if not isinstance(window, (int, float)):
        return "average"
    return f"{min([*covered, window]):.0f} s avg"


def _class(entry: Mapping[str, Any], *, shown: Collection[str]) -> list[RenderableType]:
    """Its figures and their verdicts; those of its jobs, `shown` below, are left out."""
    limited_by = entry.get("limited_by")
    idle = _code(limited_by) == "idle"
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
        )
    ]
    if limited_by is None:  # an earlier version, or inbound: only the decision is known
        silent = _code(entry.get("reason")) in SILENT_REASONS
        return parts if silent else [*parts, *_notes(reason_text(entry.get("reason")))]
    if idle:
        return parts
    promise, lending = entry.get("promise"), printable(str(entry.get("lending", "")))
    missed = _code(promise) in ("missed", "owed")
    below = (entry.get("throughput_bits_per_s") or 0) < (entry.get("guarantee_bits_per_s") or 0)
    if missed or (below and _code(promise) not in SILENT_PROMISES):
        parts.append(note(reason_text(promise), style="bold red" if missed else ""))
    parts += _notes(lending, printable(str(entry.get("held", "")), length_max=NOTE_LENGTH_MAX))
    if _code(limited_by) not in {*SILENT_LIMITS, *shown}:
        parts += _notes(reason_text(limited_by))
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
    return sorted(found, key=lambda one: -_number(one[2].get("throughput_bits_per_s")))


def _called(job: Mapping[str, Any], name: str, *, twice: bool) -> str:
    """What a job is called; with its user where several users have jobs of that name."""
    return printable(name) + (f" of user {printable(str(job.get('uid', '?')))}" if twice else "")


def _job(name: str, job: Mapping[str, Any], share: Mapping[str, Any]) -> list[RenderableType]:
    """The figures that its class has, the one verdict on what limits it, and what it has announced."""
    limited_by = share.get("limited_by")
    idle = _code(limited_by) == "idle"
    promised = share.get("guarantee_bits_per_s")
    parts: list[RenderableType] = [
        line(
            f"  {name}",
            "idle" if idle else rate(share.get("throughput_bits_per_s")),
            rate(share.get("average_bits_per_s")),
            rate(promised) if promised else "-",
            rate(share.get("usable_bits_per_s", share.get("ceil_bits_per_s"))),
            size(share.get("backlog_bytes")),
        )
    ]
    if limited_by is None:
        parts += _notes(reason_text(share.get("reason")))
    elif not idle:
        parts += _notes(f"limited by {_LIMITS.get(_code(limited_by), _code(limited_by))}: {reason_text(limited_by)}")
    if share.get("enforced") is False:
        parts += _notes("its share is not enforced: it has no leaf of its own")
    return [*parts, *_notes("; ".join((_programs_of(job), *_burst(job))))]


_LIMITS = {
    "link": "the link", "class": "its class", "peer": "its peer", "hold": "a hold", "processor": "the processor",
    "itself": "itself", "burst": "a burst", "ceiling": "its ceiling",
}  # fmt: skip


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


def _jobs_without_figures(jobs: list[Mapping[str, Any]]) -> list[RenderableType]:
    """Jobs that are connected and have nothing in any class yet."""
    names = [
        f"{_called(job, str(job.get('job', '?')), twice=False)} ({_programs_of(job)})"
        for job in jobs
        if not items(job, "shares")
    ]
    if not names:
        return []
    more = f" and {len(names) - JOBS_SHOWN_MAX} more" if len(names) > JOBS_SHOWN_MAX else ""
    return [Text(f"connected, nothing registered: {', '.join(names[:JOBS_SHOWN_MAX])}{more}")]


def _storage_alone(interface: Mapping[str, Any]) -> list[RenderableType]:
    """For an inbound direction with holds: why storage is held back, or not."""
    return [
        part
        for entry in items(interface, "classes")
        if entry.get("name") == "storage"
        for part in _notes(f"storage: {reason_text(entry.get('reason'))}")
    ]


def _programs(document: Mapping[str, Any]) -> list[RenderableType]:
    programs = items(document, "programs")
    if not programs:
        return []
    parts: list[RenderableType] = [
        Text(""),
        beside("program", f"{'class':<8}{'sends':>{COLUMN}}{'receives':>{COLUMN}}  peer"),
    ]
    for row in programs[:PROGRAMS_SHOWN_MAX]:
        parts.append(_program(row))
    total, connections = document.get("programs_total"), document.get("tcp_connections")
    more = (total if isinstance(total, int) else len(programs)) - PROGRAMS_SHOWN_MAX
    if more > 0:
        known = f"; {connections:,} TCP connections in all" if isinstance(connections, int) else ""
        parts.append(Text(f"and {more:,} more{known}"))
    if any(row.get("rate_source") == "unknown" for row in programs[:PROGRAMS_SHOWN_MAX]):
        parts.append(Text("unknown: the kernel counts no bytes of a UDP socket that is not registered with the broker"))
    return parts


def _program(row: Mapping[str, Any]) -> RenderableType:
    pid, name = row.get("pid"), row.get("command")
    who = f"user {count(row.get('uid'))}" if name is None else printable(str(name))
    who += f" {pid}" if isinstance(pid, int) else ""
    unknown = row.get("rate_source") == "unknown"
    about = "~" if row.get("rate_source") == "rest-of-class" else ""
    sends = "unknown" if unknown else about + rate(row.get("throughput_bits_per_s"))
    receives = row.get("received_bits_per_s")
    uncounted = receives is None and row.get("protocol") == "udp"
    peer = printable(str(row["peer"])) if row.get("peer") is not None else f"UDP port {count(row.get('port'))}"
    number = row.get("connections")
    several = f", {number} connections" if isinstance(number, int) and number > 1 else ""
    of = printable(str(row.get("class", "?")))
    figures = f"{of:<8}{sends:>{COLUMN}}{'unknown' if uncounted else rate(receives):>{COLUMN}}  {peer}{several}"
    return beside(who, figures, style="bold")


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
        lines.append(Text(f"storage has {size(need.get('backlog_bytes'))} to send through {name}{due}{risk}"))
    if len(needs) > NEEDS_SHOWN_MAX:
        lines.append(Text(f"and {len(needs) - NEEDS_SHOWN_MAX} more; --json has them"))
    return [Text(""), *lines] if lines else []


def _notes(*texts: str) -> Iterable[RenderableType]:
    return [note(text) for text in texts if text]


def _code(reason: object) -> str:
    return str(reason.get("code", "")) if isinstance(reason, Mapping) else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
