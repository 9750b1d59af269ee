"""`hive-qos init`: look at the host, ask little, and write a first configuration that says why each line is there."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import broker.policy
from broker.cli.changing.survey import Survey, Uplink, look_at_host
from broker.cli.configuration import DEFAULT_CONFIG
from broker.cli.exits import ExitCode
from broker.policy.toml import EGRESS_BITS_PER_S_MIN, load
from hive_qos.errors import ConfigurationError
from hive_qos.files import write_whole
from hive_qos.text import printable
from hive_qos.units import format_rate, parse_rate_bits_per_s

SCHEMA = Path(broker.policy.__file__).with_name("broker.schema.json")
"""Installed with the program: editors that know `#:schema` (Taplo, Even Better TOML) complete and check by it."""
FILE_MODE = 0o644
"""Everybody may read what the host promises; only root changes it."""
WIDTH = 100  # columns of a comment
_ENDS_OF_DAY = ("08:00", "18:00")


@dataclass(frozen=True)
class Answers:
    """What somebody said, or what is taken where nobody is asked.

    Args:
        rates: of each uplink by name: a rate as TOML has it, or "auto".
        people: whether people work here on weekdays, so that their traffic goes first then.
    """

    rates: dict[str, str]
    people: bool


def init(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; so it is without a terminal.")] = False,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help='What the uplink carries, such as "40 Mbit/s".')
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", readable=False)] = DEFAULT_CONFIG,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the file, and write none.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Look at this host and write its first configuration.

    It finds the uplink, storage programs, GPUs and the time zone, and asks for the uplink's rate and for working hours.
    Each line of the file says why it is there. No file is replaced without `--force`, and nothing is shaped yet.

    \b
    Examples:
      sudo hive-qos init
      hive-qos init --yes --stdout
      sudo hive-qos init --yes --rate "40 Mbit/s"
    """
    if not stdout:
        _require_place(output, force=force)
    found = look_at_host()
    if not found.uplinks:
        raise ConfigurationError(
            "interface",
            None,
            "this host has no default route, so no uplink was found; connect it, or copy an example from "
            "/usr/share/doc/hive-qos/examples, or examples/config of the sources",
        )
    for line in _findings(found):
        typer.echo(line, err=True)
    asks = not yes and sys.stdin.isatty()
    answers = _ask(found, rate=rate) if asks else _unasked(found, rate=rate)
    text = configuration(found, answers)
    load(text)  # a mistake here would be ours: nothing is written then
    if stdout:
        typer.echo(text, nl=False)
        return
    output.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_whole(output, text, mode=FILE_MODE)
    typer.echo(f"wrote {printable(str(output))}")
    for uplink in found.uplinks:
        if answers.rates[uplink.name] == "auto" and not uplink.driver_bits_per_s:
            text = f"nobody names the speed of {printable(uplink.name)}: write its rate as egress, or use --rate"
            typer.echo(f"{text}; until then the alarm is capacity-unknown")
    option = "" if output == DEFAULT_CONFIG else f" {printable(str(output))}"
    typer.echo(f"next: hive-qos check{option}, hive-qos plan{option}, then systemctl enable --now hive-qos")


def _require_place(output: Path, *, force: bool) -> None:
    """Before anything is asked.

    Raises:
        ConfigurationError: the file is there.
        PermissionError: it could not be written.
    """
    if output.is_dir():
        raise ConfigurationError("--output", str(output), "is a directory; name a file in it")
    if output.exists() and not force:
        raise ConfigurationError(
            "--output", str(output), "is there; --force replaces it, --stdout only shows the new one"
        )
    folder = next(place for place in (output.absolute().parent, *output.absolute().parents) if place.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        typer.echo(f"hive-qos: {folder} cannot be written; run it as root, or use --output FILE or --stdout", err=True)
        raise typer.Exit(ExitCode.PRIVILEGE)


def _findings(found: Survey) -> list[str]:
    lines = []
    for uplink in found.uplinks:
        driver = f"; its driver says {format_rate(uplink.driver_bits_per_s)}" if uplink.driver_bits_per_s else ""
        lines.append(f"uplink {printable(uplink.name)}: {uplink.why}{driver}")
    storage = ", ".join(sorted({name for name, _ in found.programs} | {name for _, name in found.storage}))
    storage = storage or "none found"
    lines.append(f"storage programs: {storage}; GPU: {found.gpu or 'none found'}; time zone {found.timezone}")
    return [*lines, *found.notes]


def _unasked(found: Survey, *, rate: str | None) -> Answers:
    rates = {uplink.name: "auto" for uplink in found.uplinks}
    if rate is not None:
        rates[found.uplinks[0].name] = _rate(rate)
    return Answers(rates, people=found.desktop)


def _ask(found: Survey, *, rate: str | None) -> Answers:
    rates = {}
    for number, uplink in enumerate(found.uplinks):
        if rate is not None and number == 0:
            rates[uplink.name] = _rate(rate)
            continue
        question = f'What does the line behind {printable(uplink.name)} carry outwards, such as "40 Mbit/s"?'
        rates[uplink.name] = typer.prompt(
            f"{question} auto measures it", default="auto", value_proc=_rate_answer, err=True
        )
    hours = f"{_ENDS_OF_DAY[0]} to {_ENDS_OF_DAY[1]}"
    question = f"Do people use this line on weekdays, {hours} ({found.timezone})? Their traffic goes first then."
    return Answers(rates, people=typer.confirm(question, default=found.desktop, err=True))


def _rate(text: str) -> str:
    if text.strip() == "auto":
        return "auto"
    try:
        rate = parse_rate_bits_per_s(text)
    except ValueError as problem:
        raise ConfigurationError("--rate", text, f"{problem}, or auto") from None
    if rate < EGRESS_BITS_PER_S_MIN:
        raise ConfigurationError("--rate", text, f"write at least {format_rate(EGRESS_BITS_PER_S_MIN)}")
    return text.strip()


def _rate_answer(text: str) -> str:
    try:
        return _rate(text)
    except ConfigurationError as problem:
        raise typer.BadParameter(problem.reason) from None


def configuration(found: Survey, answers: Answers) -> str:
    """The text of the file, which `check` accepts."""
    parts = [_HEAD.format(schema=SCHEMA.as_uri())]
    parts += [_interface(uplink, answers.rates[uplink.name]) for uplink in found.uplinks]
    parts += [_comment(note) for note in found.notes]
    gpu = f"This host has {found.gpu}: training is expected." if found.gpu else "No GPU was found here."
    parts.append(_CLASSES.format(gpu=_comment(gpu), programs=_programs(found), storage=_rules(found)))
    if answers.people:
        parts.append(_PEOPLE.format(begin=_ENDS_OF_DAY[0], end=_ENDS_OF_DAY[1], timezone=found.timezone))
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _interface(uplink: Uplink, rate: str) -> str:
    if rate == "auto" and uplink.driver_bits_per_s:
        known = (
            f"It starts from the driver's {format_rate(uplink.driver_bits_per_s)}, and finds out the rest by measuring."
        )
    elif rate == "auto":
        known = "The driver names no speed: it starts from 1 Gbit/s, and finds out the rest by measuring."
    else:
        known = "As you said. The shaper stays 3 % below it, so that packets queue here, where their class is known."
    better = " If you know what the line carries, write it." if rate == "auto" else ""
    lines = [
        _comment(f"Chosen because: {uplink.why}."),
        "[[interface]]",
        f"name = {json.dumps(uplink.name, ensure_ascii=False)}",
        _comment(f"What leaves: the line's rate, not the network card's. {known}{better}"),
        f"egress = {json.dumps(rate)}",
        _comment(
            'What arrives: "auto" asks the brokers of storage hosts to wait for training; a rate holds it back here.'
        ),
        '# ingress = "auto"',
    ]
    return "\n".join(lines)


def _programs(found: Survey) -> str:
    """Known programs with what shows each; rsync's own protocol is storage everywhere."""
    shown = {"rsync": "its own protocol", **dict(found.programs)}
    return _commented((json.dumps(name), what) for name, what in sorted(shown.items()))


def _rules(found: Survey) -> str:
    services = (
        (f"{{ cgroup = {json.dumps(cgroup, ensure_ascii=False)} }}", f"{name} runs there")
        for cgroup, name in found.storage
    )
    return _commented([*services, ("{ dscp = 1 }", "LE, RFC 8622, as replication marks itself")])


def _commented(entries: Iterable[tuple[str, str]]) -> str:
    """Entries of a list in TOML, a line each, with a comment."""
    lines = list(entries)
    width = max(len(entry) for entry, _ in lines) + 1
    return "\n".join(f"  {entry + ',':<{width}}  # {what}" for entry, what in lines)


def _comment(text: str) -> str:
    return textwrap.fill(printable(text, length_max=1000), WIDTH, initial_indent="# ", subsequent_indent="# ")


_HEAD = """
#:schema {schema}
# Written by `hive-qos init`. After a change: hive-qos check, hive-qos plan, hive-qos apply.
# Everything that is not here has its default; docs/reference/configuration.md has every key
# (below /usr/share/doc/hive-qos, or in the sources).
version = 1
"""
_CLASSES = """
# Four classes share the line. Each is promised its guarantee on average over a minute, and what one
# leaves the others take: training 60 %, storage 20 %, people and the rest 10 %, control 2 %.
{gpu}
[class.compute]
guarantee = "60 %"

# Storage lends its guarantee to training's bursts, and gets it back within the minute.
# Other programs: hive-qos run --class storage -- PROGRAM
[class.storage]
guarantee = "20 %"
# By ports and systemd units:
programs = [
{programs}
]
match = [
  {{ cgroup = "hive.slice/hive-storage.slice" }},
{storage}
]
"""
_PEOPLE = """
# People work here then: what no rule finds goes first, and training and storage take what is left.
[[schedule]]
name = "office hours"
days = ["mon", "tue", "wed", "thu", "fri"]
from = "{begin}"
to = "{end}"
timezone = "{timezone}"
[schedule.class.other]
guarantee = "50 %"
priority = 1
[schedule.class.compute]
guarantee = "30 %"
priority = 2
[schedule.class.storage]
guarantee = "10 %"
"""
