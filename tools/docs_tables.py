"""Writes the tables of the documents that are made from the code, between markers in the pages, and the configuration's
JSON Schema.

    python -m tools.docs_tables            write them anew
    python -m tools.docs_tables --check    exit with 1 where a page differs

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; `TABLES` has the names.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
BROKER: Final = ROOT / "broker"
SCHEMA: Final = BROKER / "policy" / "broker.schema.json"
_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Give a page with its tables as the code has them.

    Raises:
        KeyError: a marker names a table that does not exist.
    """
    return _MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[4]}", text)


def alarms() -> str:
    """Every alarm of the broker: its code, what it means, what to do."""
    from broker.cli.alarm_advice import ALARM_ADVICE

    rows = ((f"`{code}`", advice.meaning, advice.action) for code, advice in sorted(ALARM_ADVICE.items()))
    return _table(("alarm", "what it means", "what to do"), rows)


def configuration_schema() -> str:
    """The JSON Schema of `broker.toml`, which is installed with the broker."""
    import json

    from broker.policy.schema import schema

    return json.dumps(schema(), indent=1) + "\n"


def commands() -> str:
    """Every command of `hive-qos`: its help, its arguments and options."""
    import typer

    from broker.cli.app import app

    return "\n".join(_command(typer.main.get_command(app), "hive-qos")).strip() + "\n"


def faults() -> str:
    """Every fault of a volatile group's member by phase, and what comes of it, from the search of the tests."""
    sys.path.insert(0, str(ROOT / "tests/unit/transport/volatile"))
    try:
        from fault_table import rows
    finally:
        del sys.path[0]
    return _table(("a member, and what it does", "the step", "the members"), rows())


def programs() -> str:
    """Every storage program that `programs` knows: what it is, its ports, its systemd units."""
    from broker.policy.known_programs import KNOWN_PROGRAMS

    rows = (
        (
            f"`{name}`",
            one.what,
            ", ".join(map(str, one.ports)),
            ", ".join(unit.removesuffix(".service") for unit in one.units),
        )
        for name, one in KNOWN_PROGRAMS.items()
    )
    return _table(("name", "what it is", "ports", "systemd units"), rows)


def log_events() -> str:
    """Every event that the daemon logs: its level, its meaning and its keys."""
    from broker.events.catalogue import EVENTS

    rows = (
        (f"`{name}`", event.level, event.meaning, ", ".join(f"`{key}`" for key in event.keys))
        for name, event in sorted(EVENTS.items())
    )
    return _table(("event", "level", "what it means", "keys"), rows)


def reasons() -> str:
    """Every reason of the broker: its stable code, and what it means."""
    from broker.model.reasons import Because

    return _table(("code", "what it says"), sorted((f"`{one.code}`", one.meaning) for one in Because))


def metrics() -> str:
    """Every metric of the HTTP socket: its kind, what it is, and its labels."""
    from broker.api.documents.metrics import METRICS

    rows = (
        (f"`hive_qos_{name}`", one.kind, one.text, ", ".join(f"`{label}`" for label in one.labels))
        for name, one in METRICS.items()
    )
    return _table(("metric", "type", "what it is", "labels"), rows)


def http_paths() -> str:
    """Every path of the HTTP socket, with its answers, as the OpenAPI document has them."""
    from broker.api.documents.openapi import description

    rows = []
    for path, methods in description()["paths"].items():
        for method, about in methods.items():
            rows.append((f"`{method.upper()} {path}`", about["summary"], ", ".join(sorted(about["responses"]))))
    return _table(("request", "what it is", "status codes"), rows)


def status_keys() -> str:
    """Every object of the status document: what its type says of it, and its keys."""
    from broker.api.documents.openapi import description

    known, parts, told = description()["components"]["schemas"], [], set()
    for path, name in _objects(known, "Status", "Top level"):
        if name not in told:
            told.add(name)
            about = "\n\n".join(
                one for one in known[name]["description"].split("\n\n") if not one.lstrip().startswith("Fields:")
            )
            keys = textwrap.fill(", ".join(known[name]["properties"]), 110)
            parts.append(f"### {path}\n{prose(about)}\n```text\n{keys}\n```\n")
    return "\n".join(parts)


def _objects(known: Mapping[str, Any], name: str, path: str) -> Iterator[tuple[str, str]]:
    """Each object of a document, with its path and what tells it from others there."""
    yield path, name
    for key, field in known[name]["properties"].items():
        items = field.get("items", field)
        tags = items.get("discriminator", {"propertyName": "", "mapping": {}})
        for one in items.get("anyOf", [items]):
            inner = one.get("$ref", "").rpartition("/")[2]
            told_elsewhere = inner in ("Reason", "ClassAllocation", "DestinationAllocation")
            if told_elsewhere or "properties" not in known.get(inner, {}):
                continue
            before = path.split("`")[1] + "." if "`" in path else ""
            at = f"`{before}{key}{'[]' if 'items' in field else ''}`"
            kinds = [tag for tag, reference in tags["mapping"].items() if reference == one["$ref"]]
            yield from _objects(known, inner, f"{at}, {tags['propertyName']} `{kinds[0]}`" if kinds else at)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "alarms": alarms,
    "commands": commands,
    "faults": faults,
    "programs": programs,
    "http-paths": http_paths,
    "log-events": log_events,
    "metrics": metrics,
    "reasons": reasons,
    "status-keys": status_keys,
}


def pages() -> Iterator[Path]:
    """The documents that have such a table."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if _MARKED.search(path.read_text(encoding="utf-8")):
            yield path


def _command(command: Any, name: str) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"{prose(command.help)}\n"
    if lines := examples(command.help):
        yield "".join(f"- `{example}`\n" for example in lines)
    rows = [_parameter(one) for one in command.params if one.name != "help"]
    if rows:
        yield _table(("argument or option", "default", "what it does"), rows)
    for sub, one in getattr(command, "commands", {}).items():
        yield from _command(one, f"{name} {sub}")


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        shown = f"`{parameter.name.upper()}`"
    else:
        shown = ", ".join(f"`{option}`" for option in sorted(parameter.opts, key=len, reverse=True))
    default = parameter.default
    if parameter.required:
        said = "required"
    elif default in (None, False, ()) or callable(default):
        said = ""
    else:
        said = f"`{default.value if isinstance(default, Enum) else default}`"
    return shown, said, " ".join((parameter.help or "").split())


def prose(text: str) -> str:
    """Paragraphs of a command's help, without its examples, which follow a line `\\b`."""
    paragraphs = inspect.cleandoc(text).split("\b")[0].strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def examples(text: str) -> list[str]:
    """The command lines of a command's help, which follow a line `\\b`."""
    parts = inspect.cleandoc(text).split("\b")
    return [line.strip() for line in parts[1].splitlines() if line.startswith("  ")] if len(parts) > 1 else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def main() -> int:
    """Write, or compare."""
    check, differ = "--check" in sys.argv[1:], False
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (made := with_tables(text)) != text:
            differ = True
            print(path.relative_to(ROOT))
            if not check:
                path.write_text(made, encoding="utf-8")
    if not check:
        SCHEMA.write_text(configuration_schema(), encoding="utf-8")
    return int(check and differ)


if __name__ == "__main__":
    sys.exit(main())
