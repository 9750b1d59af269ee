"""The whole command line, for the documents and for tests. `hive-qos` itself takes the command alone that is typed."""

from __future__ import annotations

from broker.cli.commands import COMMANDS, command_line

app = command_line(COMMANDS)
