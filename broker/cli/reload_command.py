"""`hive-qos reload`: the file again, for good."""

from __future__ import annotations

import typer

from broker.cli.options import SocketOption


def reload(socket: SocketOption = None) -> None:
    """Have the broker read its configuration again, as SIGHUP does.

    A configuration with a mistake is refused with exit code 3, and the former one stays in force. `hive-qos apply` does
    the same with a way back.

    \b
    Example:
      hive-qos reload
    """
    from broker.client import http

    typer.echo(http.post("/v1/reload", socket_path=None if socket is None else str(socket)))
