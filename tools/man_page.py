"""Writes hive-qos(1), the manual page, from the command line's own help.

    python -m tools.man_page > hive-qos.1

One page with a section for each command, as the commands are few and share their exit codes. groff_man(7) has the
macros.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from broker.cli.app import app
from broker.cli.exits import MEANINGS
from hive_qos import __version__
from tools.docs_tables import examples, prose

NAME: Final = "hive-qos"
FILES: Final = {
    "/etc/hive-qos/broker.toml": "The broker's configuration. Its comments explain every key.",
    "/run/hive-qos/": "The two sockets of a running broker.",
    "/usr/share/doc/hive-qos/": "Documents and examples: docs/index.md has them all by reader.",
    "/var/lib/hive-qos/": "What was on the interfaces before, and how much each class and user has sent.",
}
ENVIRONMENT: Final = {
    "HIVE_BROKER": "The session socket (default /run/hive-qos/session.sock); the HTTP socket is broker.sock beside it.",
    "HIVE_DEBUG": "1 shows a traceback instead of one line.",
}
SEE_ALSO: Final = (("tc", 8), ("tc-htb", 8), ("systemctl", 1), ("systemd.slice", 5))


def page() -> str:
    """Give the page's source. It has no date, so that the same help gives the same page."""
    root: Any = typer.main.get_command(app)
    lines = [
        f'.TH {NAME.upper()} 1 "" "{NAME} {__version__}" "User Commands"',
        ".SH NAME",
        f"{_text(NAME)} \\- {_text(prose(root.help).rstrip('.').lower())}",
        ".SH SYNOPSIS",
        f".B {_text(NAME)}",
        r"\fICOMMAND\fR [\fIOPTION\fR]...",
        ".SH DESCRIPTION",
        _text("The broker is a daemon that shares each interface of this host among four classes of traffic:"),
        _text("control, compute (training), storage and other. The other commands ask it, or look after it."),
        ".SH COMMANDS",
        *_commands(root, NAME),
        ".SH EXIT STATUS",
        *_list({str(code.value): meaning for code, meaning in MEANINGS.items()}),
        ".SH ENVIRONMENT",
        *_list(ENVIRONMENT),
        ".SH FILES",
        *_list(FILES),
        ".SH SEE ALSO",
        " ,\n".join(f".BR {_text(name)} ({section})" for name, section in SEE_ALSO).replace(" ,", ","),
    ]
    return "\n".join(lines) + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    for sub, one in command.commands.items():
        full = f"{name} {sub}"
        if hasattr(one, "commands"):
            yield from _commands(one, full)
            continue
        yield f".SS {_text(full)}"
        for paragraph in prose(one.help).split("\n\n"):
            yield from (".P", _text(paragraph))
        context = typer.Context(one, info_name=sub)
        for names, said in (parameter.get_help_record(context) for parameter in one.params):
            yield from (".TP", f".B {_text(names)}", _text(said))
        if lines := examples(one.help):
            yield from (".P", "Examples:", ".P", ".nf", ".RS", *map(_text, lines), ".RE", ".fi")


def _list(entries: dict[str, str]) -> Iterator[str]:
    for term, meaning in entries.items():
        yield from (".TP", f".B {_text(term)}", _text(meaning))


def _text(text: str) -> str:
    """Text that groff shows as it is: a minus that can be copied, and no line that begins a request."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "")
    return f"\\&{shown}" if shown.startswith(".") else shown


if __name__ == "__main__":
    sys.stdout.write(page())
