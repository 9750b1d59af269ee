"""A measured process's end of its talk with the controller: one JSON object a line, in and out.

    controller -> program   {"do": "send", "id": 7, ...}
    program -> controller   {"id": 7, "begun": true}       ready for the other side to start, where there is one
                            {"id": 7, "done": {...}}       the result
                            {"id": 7, "failed": "text"}    it could not be carried out; the program lives on

The answers go to a private copy of standard output, and everything that a library prints goes to standard error.
The end of standard input ends the program.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Order: TypeAlias = Mapping[str, Any]
Begun: TypeAlias = Callable[[], None]
Handler: TypeAlias = Callable[[Order, Begun], Mapping[str, Any]]


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer orders until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    for line in sys.stdin:
        order = json.loads(line)

        def say(key: str, value: object, order_id: int = order["id"]) -> None:
            answers.write(json.dumps({"id": order_id, key: value}) + "\n")

        try:
            say("done", handlers[order["do"]](order, lambda: say("begun", True)))  # called in its turn only
        except Exception as error:  # noqa: BLE001  # the controller writes it down and goes on with the others
            say("failed", f"{type(error).__name__}: {error}")


def cpu_s() -> float:
    """User and system time of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def reset_peak() -> int:
    """Forget the peak of the resident memory; gives what is resident now, in bytes (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    """The largest resident memory since `reset_peak`."""
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """What is resident now."""
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")
