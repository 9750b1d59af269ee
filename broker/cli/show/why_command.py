"""`hive-qos why`: what limits a job, a class or a program now."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from broker import client
from broker.cli import completion
from broker.cli.options import JsonOption, SocketOption


def why(
    name: Annotated[
        str,
        typer.Argument(
            help="A job, a class, a program's name, or the number of its process.", autocompletion=completion.subjects
        ),
    ],
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what limits a job, a class or a program now, since when, and what could be done about it.

    The limit is the link, its class, a ceiling, a burst, another broker's hold, its peer, the processor, or itself.
    A job of this name comes first, then a class, then a program.

    \b
    Examples:
      hive-qos why resnet
      hive-qos why storage
      hive-qos why rsync
      hive-qos why 4711 --json | jq '.[].limited_by'
    """
    from broker.cli.show.explanation import explanations, find, known
    from hive_qos.text import printable

    document = client.status(None if socket is None else str(socket))
    subject = find(document, name)
    if subject is None:
        text = f"{printable(name)!r} sends nothing here. Known are {known(document)}"
        raise typer.BadParameter(text, param_hint="NAME")
    found = explanations(document, subject)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    from broker.cli.show.screen import Note, Output

    console = Output()
    if not found:
        console.print(f"{printable(subject.name)} is connected and has registered nothing to send yet.", markup=False)
    for place, one in enumerate(found):
        if place:
            console.print()
        console.print(one.sentence, style="bold", markup=False)
        for fact in one.evidence:
            console.print(Note(fact.text, about=fact.about))
        if one.advice:
            console.print("What could be done:", markup=False)
        for text in one.advice:
            console.print(Note(text))
