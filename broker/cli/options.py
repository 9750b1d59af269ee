"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--socket", "-s", readable=False, help="The broker's HTTP socket (default: beside $HIVE_BROKER, /run/hive-qos)."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
