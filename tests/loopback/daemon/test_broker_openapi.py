"""The HTTP socket keeps to its own description, whatever is asked of it: schemathesis makes the requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from broker_support import Running
from hypothesis import HealthCheck, Phase, given, settings
from patience import LIMIT_S
from schemathesis import GenerationMode, openapi
from schemathesis.specs.openapi.checks import positive_data_acceptance
from test_broker_http import http_request

from broker.api.documents.openapi import description

OPERATIONS = [(path, method) for path, methods in description()["paths"].items() for method in methods]
EXAMPLES = 40
LEFT_OUT: dict[str, list[Any]] = {path: [positive_data_acceptance] for path in ("/v1/set", "/v1/unset")}
"""Which values fit depends on the configuration and on what is set, which no schema of a request knows."""


def _is_written_wrongly(case: schemathesis.Case[Any]) -> bool:
    """A list with an empty text in it is written `by=`, as a list of nothing is, which may be asked for."""
    return (case.query or {}).get("by") != ""


@pytest.fixture
def url(running: Running) -> Iterator[str]:
    """The Unix socket behind a TCP port of loopback, which is all that HTTP libraries speak."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_forward, args=(server, running.api), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


def _forward(server: socket.socket, path: str) -> None:
    while True:
        try:
            client = server.accept()[0]
        except OSError:
            return
        with client, socket.socket(socket.AF_UNIX) as broker:
            client.settimeout(LIMIT_S)
            broker.settimeout(LIMIT_S)
            broker.connect(path)
            back = threading.Thread(target=_copy, args=(broker, client), daemon=True)
            back.start()
            _copy(client, broker)
            back.join(LIMIT_S)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either may go in the middle
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_one_that_is_described(running: Running, url: str, path: str, method: str) -> None:
    schema = openapi.from_dict(description())
    schema.config.update(base_url=url)
    operation = schema[path][method]
    wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE).filter(_is_written_wrongly)

    @given(case=wrong | operation.as_strategy())
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(timeout=LIMIT_S, excluded_checks=LEFT_OUT.get(path, []))

    ask()
    assert running.status()["schema"] == 1


def test_the_description_is_served(running: Running) -> None:
    assert http_request(running.api, "GET", "/v1/openapi.json")[0] == 200
    for path, methods in description()["paths"].items():
        other = "POST" if "get" in methods else "GET"
        status, headers = http_request(running.api, other, path)
        assert (status, headers["Allow"]) == (405, next(iter(methods)).upper())
