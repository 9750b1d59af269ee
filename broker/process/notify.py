"""Tells systemd the state of the daemon: sd_notify(3) and sd_watchdog_enabled(3), a datagram each."""

from __future__ import annotations

import contextlib
import os
import socket


class Notifier:
    """Harmless where nobody listens. Takes NOTIFY_SOCKET and WATCHDOG_USEC out of an environment.

    `watchdog_s` is how often `watchdog()` should be called: half of what systemd waits for; None when it does not.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        given = dict(os.environ) if environment is None else environment
        path = given.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        ours = given.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        microseconds = given.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(microseconds) / 2e6 if ours and microseconds.isdigit() and int(microseconds) else None

    def ready(self, status: str) -> None:
        """Everything is in place."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self, *, monotonic_us: int) -> None:
        """A reload has begun; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us}")

    def watchdog(self) -> None:
        """The daemon is alive, for systemd's own watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon is stopping."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A supervisor that does not listen must not stop the broker, nor must a lack of descriptors.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)


def _line(text: str) -> str:
    return text.replace("\n", " ")
