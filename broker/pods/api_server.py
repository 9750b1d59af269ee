"""The pods of one node from Kubernetes' API server: a list, then a watch from its version on; and events about pods.

With the standard library, as four requests are all of it (a client of the whole API would bring some thirty packages
into a process that runs as root). HTTPS alone, with the service account's CA and token; the token is read for every
request, because the kubelet renews it. Protocol: kubernetes.io, API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import datetime
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from broker.pods.rules import PodKey
from hive_qos.errors import BrokerError, ConfigurationError
from hive_qos.text import printable

WATCH_S = 60
"""The server ends a watch after this long; what could not be applied is then tried again."""
TIMEOUT_S = 15.0
ANSWER_BYTES_MAX = 64 * 2**20
"""A kubelet takes some hundred pods; an object of etcd's has at most 1.5 MiB."""
LINE_BYTES_MAX = 4 * 2**20
"""One object, with what JSON and managed fields add."""
TOKEN_BYTES_MAX = 64 * 1024
"""A token has some kilobytes."""


class ApiServerError(BrokerError):
    """The API server cannot be reached, or refuses. Look at its address, the network and the service account's role."""

    code = "api-server"


class VersionGone(ApiServerError):
    """The server does not know the version any more from which to watch: list again."""


@dataclass(frozen=True)
class ApiServer:
    """Where the server is, and who asks. Each call opens a connection of its own.

    Args:
        account: the directory with `token` and `ca.crt`, as a service account's volume has them.
    """

    host: str
    port: int
    node: str
    account: Path

    def list_pods(self) -> tuple[dict[str, dict[str, Any]], str]:
        """All pods of the node by uid, and the version from which to watch.

        Raises:
            ApiServerError: no answer, or a refusal.
        """
        with self._answer("GET", self._pods({}), timeout_s=TIMEOUT_S) as answer:
            try:
                body = answer.read(ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                raise ApiServerError(f"the list broke off: {error or type(error).__name__}") from error
        if len(body) > ANSWER_BYTES_MAX:
            raise ApiServerError(f"a list of more than {ANSWER_BYTES_MAX} bytes")
        try:
            document = json.loads(body)
            pods = {str(pod["metadata"]["uid"]): pod for pod in document.get("items") or ()}
            return pods, str(document["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiServerError(f"no list of pods: {error!r}") from error

    def watch_pods(self, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What changes from a version on, as (type, object), until the server ends it. BOOKMARK has a version alone.

        Raises:
            VersionGone: list again.
            ApiServerError: no answer, a refusal, or the connection broke.
        """
        asked = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": WATCH_S}
        with self._answer("GET", self._pods(asked), timeout_s=WATCH_S + TIMEOUT_S) as answer:
            while True:
                try:
                    line = answer.readline(LINE_BYTES_MAX + 1)
                    if not line:
                        return
                    if len(line) > LINE_BYTES_MAX:
                        raise ApiServerError(f"an object of more than {LINE_BYTES_MAX} bytes")
                    event = json.loads(line)
                    kind, thing = str(event["type"]), event["object"]
                    if kind == "ERROR" and thing.get("code") == HTTPStatus.GONE:
                        raise VersionGone(str(thing.get("message", "gone")))
                    if kind == "ERROR":
                        raise ApiServerError(str(thing.get("message", thing)))
                    if not isinstance(thing["metadata"], dict):
                        raise ValueError("an object without metadata")
                except (OSError, http.client.HTTPException) as error:
                    raise ApiServerError(f"the watch broke: {error or type(error).__name__}") from error
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ApiServerError(f"no event of a watch: {error!r}") from error
                yield kind, thing

    def report(self, pod: PodKey, text: str) -> None:
        """Write an event about a pod, which `kubectl describe pod` shows.

        Raises:
            ApiServerError: no answer, or a refusal.
        """
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "hive-qos-", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
            },
            "reason": "ClassNotApplied",
            "message": printable(text, length_max=1000),
            "type": "Warning",
            "source": {"component": "hive-qos", "host": self.node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }  # fmt: skip
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/events"
        with self._answer("POST", path, timeout_s=TIMEOUT_S, body=json.dumps(event)):
            pass

    def _pods(self, asked: Mapping[str, object]) -> str:
        return f"/api/v1/pods?{urlencode({'fieldSelector': f'spec.nodeName={self.node}', **asked})}"

    def _answer(
        self, method: str, path: str, *, timeout_s: float, body: str | None = None
    ) -> closing[http.client.HTTPResponse]:
        """The answer to a request, which has been accepted; closing it closes the connection (`Connection: close`)."""
        try:
            context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # of Python 3.13: clusters' own CAs lack extensions
            with open(self.account / "token", encoding="ascii") as file:
                token = file.read(TOKEN_BYTES_MAX).strip()
        except (OSError, ValueError) as error:
            raise ApiServerError(f"{self.account}: no service account: {error}") from error
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            if answer.status < HTTPStatus.BAD_REQUEST:
                return closing(answer)
            words = answer.read(2000).decode(errors="replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise ApiServerError(f"{self.host}:{self.port}: {error or type(error).__name__}") from error
        connection.close()
        if answer.status == HTTPStatus.GONE:
            raise VersionGone(_message_of(words))
        raise ApiServerError(f"{method} {path.partition('?')[0]}: {answer.status} {_message_of(words)}")


def in_cluster(node: str, *, account: Path) -> ApiServer:
    """The API server as a pod finds it.

    Raises:
        ConfigurationError: this is no pod, or the node's name is missing.
    """
    if not node:
        raise ConfigurationError("--node", None, "name this node: $NODE_NAME from the downward API (spec.nodeName)")
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    if not host or not port.isdigit():
        raise ConfigurationError("KUBERNETES_SERVICE_HOST", host, "is set in every pod of Kubernetes; run this in one")
    return ApiServer(host=host, port=int(port), node=node, account=account)


def _message_of(words: str) -> str:
    """The server's own words in a `Status` object."""
    try:
        return printable(str(json.loads(words)["message"]), length_max=500)
    except (ValueError, KeyError, TypeError):
        return printable(words, length_max=200)
