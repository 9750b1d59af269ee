"""An API server of Kubernetes as `hive-qos pods` meets it: pods of nodes over HTTPS, by list and watch, and events.

What it does is what Kubernetes documents of its API: versions, `resourceVersion`, bookmarks, 410 Gone as an event of
the watch, bearer tokens. Nothing outlives `close`.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from transport.identity import ca_init, ca_issue

TOKEN = "the token of the account"
HISTORY_MAX = 1000


def pod(
    name: str,
    *,
    uid: str,
    traffic_class: str | None = "storage",
    host_network: bool = True,
    qos: str = "Burstable",
    addresses: tuple[str, ...] = (),
    phase: str = "Running",
    created: str = "2026-11-23T10:00:00Z",
) -> dict[str, Any]:
    """A pod as the server has it, with the fields that are looked at and some that are not."""
    annotations = {"example.org/other": "x"} | ({"hive-qos.io/class": traffic_class} if traffic_class else {})
    return {
        "metadata": {
            "namespace": "default", "name": name, "uid": uid, "creationTimestamp": created, "annotations": annotations,
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], "hostNetwork": host_network},
        "status": {"phase": phase, "qosClass": qos, "podIPs": [{"ip": address} for address in addresses]},
    }  # fmt: skip


class KubernetesApi:
    """A server on a port of loopback. `events` are those that were written, `lists` counts lists."""

    def __init__(self, folder: Path) -> None:
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        ca_init(folder / "api-ca")
        files = ca_issue(folder / "api-ca", "api", addresses=["127.0.0.1"], out=folder)
        (self.account / "ca.crt").write_bytes((folder / "api-ca" / "ca.crt").read_bytes())
        (self.account / "token").write_text(TOKEN + "\n")
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.lists = self.watches = 0
        self.refuse: int | None = None
        self.changed = threading.Condition()
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._version, self._oldest, self._hang_up = 100, 0, 0
        self._closed = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                """Not in a test's output."""

            def do_GET(self) -> None:
                server._answer(self)

            def do_POST(self) -> None:
                server._take_event(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What a pod has in its environment."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(self.port),
            "NODE_NAME": "node-1",
        }

    def put(self, one: dict[str, Any]) -> None:
        """Add or change a pod."""
        uid = one["metadata"]["uid"]
        with self.changed:
            self._note("MODIFIED" if uid in self.pods else "ADDED", one)
            self.pods[uid] = one

    def delete(self, uid: str) -> None:
        with self.changed:
            self._note("DELETED", self.pods.pop(uid))

    def forget(self) -> None:
        """Forget all history, as etcd's compaction does: whoever watches is told 410 and has to list again."""
        with self.changed:
            self._version += 1
            self._oldest = self._version
            self._history.clear()
            self.changed.notify_all()

    def hang_up(self) -> None:
        """Break all watches off in the middle."""
        with self.changed:
            self._hang_up += 1
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def _note(self, kind: str, one: dict[str, Any]) -> None:
        with self.changed:
            self._version += 1
            one["metadata"]["resourceVersion"] = str(self._version)
            self._history = [*self._history, (self._version, kind, json.loads(json.dumps(one)))][-HISTORY_MAX:]
            self.changed.notify_all()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        target = urlsplit(request.path)
        asked = {key: values[0] for key, values in parse_qs(target.query).items()}
        if self._refused(request):
            return
        if target.path != "/api/v1/pods" or asked.get("fieldSelector") != "spec.nodeName=node-1":
            _say(request, 403, {"message": "pods is forbidden: only those of the own node"})
        elif "watch" in asked:
            with self.changed:  # who sees the watch in the count can hang up on it
                self.watches += 1
                generation = self._hang_up
            self._watch(request, int(asked["resourceVersion"]), generation)
        else:
            self.lists += 1
            with self.changed:
                document = {
                    "metadata": {"resourceVersion": str(self._version)},
                    "items": list(self.pods.values()),
                }
            _say(request, 200, document)

    def _refused(self, request: BaseHTTPRequestHandler) -> bool:
        code = self.refuse if request.headers["Authorization"] == f"Bearer {TOKEN}" else 401
        if code is not None:
            _say(request, code, {"message": "Unauthorized" if code == 401 else "not now"})
        return code is not None

    def _watch(self, request: BaseHTTPRequestHandler, version: int, generation: int) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        while True:
            with self.changed:
                while not (
                    self._closed
                    or self._hang_up != generation
                    or version < self._oldest
                    or any(entry[0] > version for entry in self._history)
                ):
                    self.changed.wait()
                if self._closed or self._hang_up != generation:
                    request.close_connection = True
                    return
                gone = version < self._oldest
                fresh = [entry for entry in self._history if entry[0] > version]
            if gone:
                _chunk(request, {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
                request.wfile.write(b"0\r\n\r\n")
                request.close_connection = True
                return
            for number, kind, one in fresh:
                version = number
                _chunk(request, {"type": kind, "object": one})
            bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}
            _chunk(request, {"type": "BOOKMARK", "object": bookmark})

    def _take_event(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        if self._refused(request):
            return
        self.events.append(body)
        _say(request, 201, body)


def _say(request: BaseHTTPRequestHandler, code: int, document: object) -> None:
    body = json.dumps(document).encode()
    request.send_response(code)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _chunk(request: BaseHTTPRequestHandler, document: object) -> None:
    line = json.dumps(document).encode() + b"\n"
    request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
    request.wfile.flush()
