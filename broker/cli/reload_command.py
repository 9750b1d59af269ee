"""`hive-qos reload` and `confirm`: a new configuration without losing a packet, and back unless it is confirmed."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli.options import SocketOption


def reload(
    confirm: Annotated[
        float | None,
        typer.Option(
            "--confirm",
            metavar="SECONDS",
            min=1,
            max=3600,
            help="Try it: go back to the former one unless `hive-qos confirm` comes in time.",
        ),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Have the broker read its configuration again.

    A configuration with a mistake is refused with exit code 3, and the former one stays in force.

    \b
    Examples:
      hive-qos reload
      hive-qos reload --confirm 60
    """
    from broker.client import http

    target = "/v1/reload" if confirm is None else f"/v1/reload?confirm_s={confirm:g}"
    typer.echo(http.post(target, socket_path=None if socket is None else str(socket)))


def confirm(socket: SocketOption = None) -> None:
    """Keep the configuration that is on trial.

    `hive-qos reload --confirm SECONDS` begins a trial. Without this command the former configuration comes back.

    \b
    Example:
      hive-qos reload --confirm 60 && ping -c 3 gateway && hive-qos confirm
    """
    from broker.client import http

    typer.echo(http.post("/v1/confirm", socket_path=None if socket is None else str(socket)))
