"""etcd as the register of a volatile group, over the JSON gateway of its v3 API. Standard library only.

    endpoints = ["https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://10.0.0.3:2379"]
    store = EtcdStore(endpoints, ca="ca.crt", certificate="me.crt", key="me.key")
    register = Register(store, job="llm", secret=b"...")

Three of five etcd servers, or two of three, are enough. Each request is tried at one server after the other until it is
answered or its time is over. A request whose answer was lost may have been carried out, so all are such that doing them
again changes nothing: a comparison finds its own value in place, and a counter remembers who has added.

A store in a torch process ends with the job; etcd does not. So what is only set is kept under a lease, and goes after
two hours. The view and the counter stay: before a job of that name begins anew, remove them with
`etcdctl del --prefix hive/volatile/JOB/`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import secrets
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from hive_qos.errors import ConfigurationError, RegisterLostError

TIMEOUT_S = 10.0
"""Longer than an election at etcd's defaults (1 to 2 s), also where the first server that is asked is cut off."""
PAUSE_S = 0.1
"""Between two rounds over all servers while none has a leader."""
NOTES_S = 2 * 3600
"""How long a note is kept. Members read notes within seconds; one that was suspended for an hour has been left out."""
ANSWER_BYTES_MAX = 4 * 2**20
"""More than the largest value that etcd takes (1.5 MiB), in base64."""
_LEASE_GONE = "lease not found"


class EtcdStore:
    """`register.Store` over etcd. May be called from any thread; requests go one after the other.

    Args:
        endpoints: of the servers, such as `https://10.0.0.1:2379`.
        ca: a PEM file with who signs the servers' certificates; "" for those of the system. Only for https.
        certificate, key: PEM files of this client, where the servers ask for them (`--client-cert-auth`).
        timeout_s: of each request, over all servers together.

    Raises:
        ConfigurationError: an endpoint is no address, or a file cannot be read.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        ca: str = "",
        certificate: str = "",
        key: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not endpoints:
            raise ConfigurationError("etcd", None, "name at least one endpoint, such as https://10.0.0.1:2379")
        self._servers = [_server(one) for one in endpoints]
        self._tls = _tls(ca, certificate, key) if any(tls for tls, _, _ in self._servers) else None
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._lease: tuple[str, float] | None = None

    def get(self, key: str) -> bytes | None:
        return _value(self._ask(f"reading {key}", "kv/range", {"key": _encoded(key)}))

    def set(self, key: str, value: bytes) -> None:
        put = {"key": _encoded(key), "value": _encoded(value)}
        self._ask_leased(f"writing {key}", "kv/put", put, leased=put)

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        name = _encoded(key)
        held = {"target": "VALUE", "value": _encoded(expected)} if expected else _absent()
        request = {
            "compare": [{"key": name, "result": "EQUAL", **held}],
            "success": [{"request_put": {"key": name, "value": _encoded(value)}}],
            "failure": [{"request_range": {"key": name}}],
        }
        answer = self._ask(f"replacing {key}", "kv/txn", request)
        return value if answer.get("succeeded") else _value(_response(answer, 0)) or b""

    def renew(self) -> bool:
        return False  # each request has a limit of its own

    def add(self, key: str, amount: int) -> int:
        if amount == 0:
            return _number(self.get(key))
        mine = f"{key}/added/{secrets.token_hex(8)}"
        name, done = _encoded(key), _encoded(mine)
        held = self.get(key)
        while True:
            total = _number(held) + amount
            at = {"target": "VALUE", "value": _encoded(held)} if held is not None else _absent()
            note = {"key": done, "value": _encoded(str(total))}
            request = {
                "compare": [{"key": name, "result": "EQUAL", **at}, {"key": done, "result": "EQUAL", **_absent()}],
                "success": [
                    {"request_put": {"key": name, "value": _encoded(str(total))}},
                    {"request_put": note},
                ],
                "failure": [{"request_range": {"key": name}}, {"request_range": {"key": done}}],
            }
            answer = self._ask_leased(f"counting {key}", "kv/txn", request, leased=note)
            if answer.get("succeeded"):
                return total
            if (before := _value(_response(answer, 1))) is not None:  # an answer was lost: it is done
                return _number(before)
            held = _value(_response(answer, 0))

    def close(self) -> None:
        """Close the connection; the next request makes one again."""
        with self._lock:
            self._drop()

    def _ask_leased(
        self, what: str, path: str, request: Mapping[str, object], *, leased: dict[str, str]
    ) -> dict[str, Any]:
        """Ask with `leased`, a put of the request, under the lease; once more under a new one where that is gone."""
        leased["lease"] = self._leased()
        try:
            return self._ask(what, path, request)
        except RegisterLostError as error:
            if _LEASE_GONE not in error.reason:
                raise
        self._lease = None  # this host slept for longer, and its clock stood
        leased["lease"] = self._leased()
        return self._ask(what, path, request)

    def _leased(self) -> str:
        """The lease of what is written now: it lasts for at least half of `NOTES_S`."""
        now_s, lease = time.monotonic(), self._lease  # another thread may drop it
        if lease is None or now_s > lease[1]:
            granted = self._ask("asking for a lease", "lease/grant", {"TTL": str(NOTES_S)})
            self._lease = lease = (str(granted.get("ID", "0")), now_s + NOTES_S / 2)
        return lease[0]

    def _ask(self, what: str, path: str, request: Mapping[str, object]) -> dict[str, Any]:
        """Ask one server after the other until one answers."""
        body = json.dumps(request).encode()
        give_up_s = time.monotonic() + self._timeout_s
        with self._lock:
            reason = ""
            while True:
                for _ in range(len(self._servers)):
                    left_s = give_up_s - time.monotonic()
                    if left_s <= 0:
                        raise RegisterLostError(what, f"no etcd server answers within {self._timeout_s:g} s: {reason}")
                    try:
                        status, data = self._post(path, body, min(left_s, self._timeout_s / len(self._servers)))
                        answer = json.loads(data)
                        if not isinstance(answer, dict):
                            raise ValueError("it answers with no object")
                    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                        reason = f"{self._names()}: {error or type(error).__name__}"
                    else:
                        if status == http.client.OK:
                            return answer
                        reason = f"{self._names()}: {answer.get('message') or answer.get('error') or status}"
                        if status < http.client.INTERNAL_SERVER_ERROR:
                            raise RegisterLostError(what, reason)  # another server would say the same
                    self._drop()
                    self._servers.append(self._servers.pop(0))
                time.sleep(min(PAUSE_S, max(give_up_s - time.monotonic(), 0.0)))

    def _post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        fresh = self._connection is None
        try:
            return self._post_once(path, body, timeout_s)
        except (ConnectionError, http.client.BadStatusLine):
            if fresh:
                raise
            self._drop()  # the server has closed a connection that was idle
            return self._post_once(path, body, timeout_s)

    def _post_once(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        tls, host, port = self._servers[0]
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
                if tls
                else http.client.HTTPConnection(host, port, timeout=timeout_s)
            )
            self._connection.connect()
        self._connection.sock.settimeout(timeout_s)
        self._connection.request("POST", f"/v3/{path}", body, {"Content-Type": "application/json"})
        with contextlib.closing(self._connection.getresponse()) as response:
            data = response.read(ANSWER_BYTES_MAX + 1)
            if len(data) > ANSWER_BYTES_MAX:
                raise ValueError(f"it answers with more than {ANSWER_BYTES_MAX} bytes")
        if response.will_close:
            self._drop()
        return response.status, data

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _names(self) -> str:
        _, host, port = self._servers[0]
        return f"{host}:{port}"


def _server(endpoint: str) -> tuple[bool, str, int]:
    """Whether it speaks TLS, its host and its port."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or 2379
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or parts.path not in ("", "/"):
        raise ConfigurationError("etcd", endpoint, "write an endpoint such as https://10.0.0.1:2379")
    return parts.scheme == "https", host, port


def _tls(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate or key:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        named = ", ".join(one for one in (ca, certificate, key) if one)
        raise ConfigurationError("etcd", named, f"cannot be read as PEM files: {error}") from error
    return context


def _encoded(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _absent() -> dict[str, str]:
    """What a key that is not there has."""
    return {"target": "CREATE", "create_revision": "0"}


def _response(answer: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """What the request at `place` of a transaction read."""
    try:
        found = answer["responses"][place]["response_range"]
    except (KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _value(answer: Mapping[str, Any]) -> bytes | None:
    """The value that a range has found, None where there is none."""
    try:
        return base64.b64decode(answer["kvs"][0].get("value", ""), validate=True)
    except (KeyError, IndexError):
        return None
    except (AttributeError, TypeError, ValueError) as error:
        raise RegisterLostError("reading", f"etcd answers with no value: {error}") from error


def _number(held: bytes | None) -> int:
    try:
        return int(held or b"0")
    except ValueError as error:
        raise RegisterLostError("counting", "what is there is no number: another program may write to it") from error
