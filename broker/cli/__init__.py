"""The command `hive-qos`. Only this package knows exit codes, tables and colours."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit. The entry point of the distribution."""
    try:
        # Imported here, so that Ctrl-C during the imports ends as it does later.
        from broker.cli.commands import command_line, wanted

        command_line(wanted(sys.argv[1:]))()
    except KeyboardInterrupt:
        sys.exit(130)
