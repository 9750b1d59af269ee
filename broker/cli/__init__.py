"""The command `hive-qos`. Only this package knows exit codes, tables and colours."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line of this process and exit. The entry point of the distribution."""
    _open_standard_streams()
    # Until a command begins there is nothing to clean up; what Python makes of Ctrl-C in an import is a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_interrupted)
    try:
        gc.disable()  # modules are no garbage: looking through them takes a tenth of a short command
        from broker.cli.commands import command_line, wanted

        app = command_line(wanted(sys.argv[1:]))
        gc.freeze()
        gc.enable()
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as problem:  # help that cannot be written
        from broker.cli.exits import report_system

        os._exit(report_system(problem))  # or Python would try to write the rest


def exit_interrupted(*_: object) -> None:
    """Handle SIGINT where there is nothing to clean up: before a command has begun, and after its end."""
    os._exit(130)


def _open_standard_streams() -> None:
    """Open what of descriptors 0 to 2 is closed, or the next file that is opened would get what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
