"""A rank's end of the controller's socket: steps are granted, records go out, one JSON line each.

    controller -> rank      {"until": 40}          run steps below 40, then wait
                            {"announce": false}    whatever else the program knows
                            {"finish": true}       no more steps
    rank -> controller      {"hello": {...}}, {"step": {...}}, {"done": {...}}

The end of the socket ends the rank.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from typing import Any

LINE_BYTES_MAX = 65536
"""A grant is a few dozen bytes; more without a newline is not our controller."""


class ControllerGoneError(Exception):
    """The controller closed its end: nobody wants this run any more."""


class Grants:
    """How far this rank may go, and what else it was told (`told`, the last word on each key)."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._pending = b""
        self.until = 0
        self.finish = False
        self.told: dict[str, Any] = {}

    def say(self, kind: str, record: Mapping[str, object]) -> None:
        """Send one record."""
        self._socket.sendall(json.dumps({kind: record}).encode() + b"\n")

    def may_run(self, step: int) -> bool:
        """Wait until `step` is granted (True) or the run is to finish (False).

        Raises:
            ControllerGoneError: the controller is gone.
        """
        while step >= self.until and not self.finish:
            self._read(wait=True)
        self._read(wait=False)
        return step < self.until

    def _read(self, *, wait: bool) -> None:
        if not wait and not select.select([self._socket], [], [], 0)[0]:
            return
        data = self._socket.recv(4096)
        if not data or len(self._pending) > LINE_BYTES_MAX:
            raise ControllerGoneError
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.until = max(self.until, int(message.pop("until", 0)))
            self.finish = self.finish or bool(message.pop("finish", False))
            self.told |= message
