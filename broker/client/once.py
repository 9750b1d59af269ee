"""One question over the session socket, and its answer: for commands, which want errors, not retries."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from broker.client import protocol
from broker.client.exchange import ask
from broker.client.http import HANGS, START
from broker.client.trust import check_server
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError


def request(
    message: Mapping[str, Any], *, socket_path: str | None = None, client: str = "tool", timeout_s: float = 3.0
) -> dict[str, Any]:
    """Open a session, ask, wait for the answer, end the session.

    Args:
        message: without `v`; its `id` is set here.

    Raises:
        BrokerUnavailableError: no broker, or no answer within `timeout_s`.
        BrokerRejectedError: the broker refused; the text has the reason.
    """
    path = protocol.session_socket_path(socket_path)
    if path is None:
        raise BrokerUnavailableError("HIVE_BROKER=off: this program does without the broker")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(path)
            check_server(sock)
            hello = {"v": protocol.VERSION, "op": "hello", "client": client, "job": "", "pid": os.getpid()}
            _ask(sock, hello)
            return _ask(sock, {**message, "id": 1})
        except PermissionError as error:
            raise BrokerRejectedError(f"{path}: no permission; join the group hive-qos") from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise BrokerUnavailableError(f"{path}: {error.strerror}; {START}") from error
        except OSError as error:
            what = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else error
            raise BrokerUnavailableError(f"{path}: {what}; {HANGS}") from error
        except protocol.MessageError as error:
            raise BrokerRejectedError(f"{path}: {error}") from error


def _ask(sock: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    answer = ask(sock, message)
    if answer.get("op") == "error":
        code = str(answer.get("code", "error"))
        raise BrokerRejectedError(f"{code}: {answer.get('text', '')}", refusal=code)
    return answer
