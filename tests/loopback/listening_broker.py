"""A broker that only listens, for tests of what a transport tells it."""

from __future__ import annotations

import array
import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

from patience import LIMIT_S


class ListeningBroker:
    """Answers hello and register as the protocol says, and keeps everything that it hears."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clients: list[socket.socket] = []
        self.heard: list[dict[str, Any]] = []
        self.ports: list[int] = []
        self._changed = threading.Condition()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(path))
        self._server.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while True:
                packet, ancillary, _, _ = client.recvmsg(65536, socket.CMSG_SPACE(8 * 4))
                if not packet:
                    return
                message = json.loads(packet)
                for _, _, data in ancillary:
                    for descriptor in array.array("i", data):
                        with socket.socket(fileno=descriptor) as passed:
                            self.ports.append(passed.getsockname()[1])
                if message["op"] == "hello":
                    client.send(json.dumps({"op": "welcome", "v": 1, "session": "s-1", "host": "h"}).encode())
                if message["op"] == "register":
                    client.send(json.dumps({"op": "registered", "id": message["id"], "flows": ["f-1"]}).encode())
                with self._changed:
                    self.heard.append(message)
                    self._changed.notify_all()

    def wait_for(self, op: str, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """The messages with these fields, when there are so many."""

        def found() -> list[dict[str, Any]]:
            return [m for m in self.heard if m["op"] == op and all(m.get(k) == v for k, v in fields.items())]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, LIMIT_S), self.heard
            return found()

    def close(self) -> None:
        """Die: nobody is accepted any more, and every session ends."""
        self._server.close()
        self.path.unlink(missing_ok=True)
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
