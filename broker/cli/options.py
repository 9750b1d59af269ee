"""Options that several commands have, and times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
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

_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_FORMS = 'write a time such as "2026-11-01" or "2026-11-01T08:00", or how long ago, such as "10min", "24h" or "7d"'
"""What a time may look like, for who wrote something else."""


def seconds_of(text: str, *, option: str) -> float:
    """Seconds since 1970 of a local time, or of how long ago.

    Raises:
        BadParameter: of none of these forms.
    """
    ago = re.fullmatch(r"([0-9.]+)\s*(s|min|h|d|w)", text.strip())
    try:
        if ago is not None:
            found = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        else:
            found = datetime.fromisoformat(text)
        return found.timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r}: {_FORMS}", param_hint=option) from None
