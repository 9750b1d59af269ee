"""Asks the broker's HTTP socket (`broker.sock`) with the standard library: one request, bounded in time and size."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, NamedTuple

from broker.client.protocol import broker_socket_path
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError

START = "no broker runs here; start it: systemctl start hive-qos"
HANGS = "a broker is there but hangs; its log says more: journalctl -u hive-qos"
ANSWER_BYTES_MAX = 16 * 2**20
"""A status with 10,000 flows is about 4 MB; more than this is no status."""


class UnixConnection(http.client.HTTPConnection):
    """To a socket of this host. Its owner closes it, also where it could not be made."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def fetch(target: str, *, socket_path: str | None = None, timeout_s: float = 3.0) -> bytes:
    """GET one path of the broker's HTTP socket.

    Args:
        target: for example `/v1/status` or `/metrics`.
        socket_path: where the broker listens; None means the one beside `$HIVE_BROKER`, else
            `/run/hive-qos/broker.sock`.

    Raises:
        BrokerUnavailableError: nobody listens there, or it did not answer in time.
        BrokerRejectedError: it answered, with something else than 200.
    """
    return _request("GET", target, socket_path=socket_path, timeout_s=timeout_s)


class Done(NamedTuple):
    """What the broker has done, and what could not be had of it, "" where all could."""

    done: str
    note: str

    def __str__(self) -> str:
        return f"{self.done}; but {self.note}" if self.note else self.done


def post(target: str, *, socket_path: str | None = None, timeout_s: float = 10.0) -> Done:
    """POST to one path of the broker's HTTP socket, and give its words.

    Args:
        target: such as `/v1/reload?confirm_s=60` or `/v1/pause`.

    Raises:
        BrokerUnavailableError, BrokerRejectedError: as `fetch`.
    """
    body = _request("POST", target, socket_path=socket_path, timeout_s=timeout_s)
    try:
        answer = json.loads(body)
        return Done(str(answer["done"]), str(answer.get("note", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokerRejectedError(f"the broker's answer cannot be read: {error}") from error


def _request(method: str, target: str, *, socket_path: str | None, timeout_s: float) -> bytes:
    path = socket_path or broker_socket_path()
    connection = UnixConnection(path, timeout_s=timeout_s)
    try:
        connection.request(method, target, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX + 1)
    except PermissionError as error:
        raise BrokerRejectedError(f"{path}: no permission; join the group hive-qos") from error
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise BrokerUnavailableError(f"{path}: {error.strerror}; {START}") from error
    except (OSError, http.client.HTTPException) as error:
        what = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else error or type(error).__name__
        raise BrokerUnavailableError(f"{path}: {what}; {HANGS}") from error
    finally:
        connection.close()
    if len(body) > ANSWER_BYTES_MAX:
        raise BrokerRejectedError(f"{path}{target}: an answer of more than {ANSWER_BYTES_MAX} bytes")
    if answer.status != 200:
        raise BrokerRejectedError(
            _refusal(body) or f"{path}{target}: HTTP status {answer.status}", status=answer.status
        )
    return body


def _refusal(body: bytes) -> str:
    """The broker's own words, "" where the answer has none."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def status(socket_path: str | None = None, *, timeout_s: float = 3.0) -> dict[str, Any]:
    """The status of the broker and its host: the document of `GET /v1/status`.

    Raises:
        BrokerUnavailableError, BrokerRejectedError: as `fetch`.
    """
    try:
        document = json.loads(fetch("/v1/status", socket_path=socket_path, timeout_s=timeout_s))
    except ValueError as error:
        raise BrokerRejectedError(f"the broker's status is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BrokerRejectedError("the broker's status is not a JSON object")
    return document
