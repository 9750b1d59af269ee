"""The HTTP socket: what can be read, that nothing can be changed, and requests that never end."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from broker_support import Running
from patience import LIMIT_S, wait_until

from broker import client
from broker.api import latest_snapshot, server
from broker.events.log import open_log
from broker.events.recent import RecentEvents
from broker.policy.toml import load
from broker.process.closer_client import CloserClient
from broker.process.rights import Authority, Right
from hive_qos.errors import BrokerRejectedError


def http_request(path: str, method: str, target: str, body: bytes | None = None) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(LIMIT_S)
    connection.sock.connect(path)
    try:
        with contextlib.suppress(BrokenPipeError):  # refused before the body was read; the answer is there all the same
            connection.request(method, target, body=body)
        answer = connection.getresponse()
        answer.read()
        return answer.status, dict(answer.headers)
    finally:
        connection.close()


def test_the_http_socket_reads_and_changes_nothing(running: Running) -> None:
    for target in ("/v1/status", "/v1/policy", "/v1/flows", "/metrics"):
        assert http_request(running.api, "GET", target)[0] == 200
    assert http_request(running.api, "GET", "/v1/nothing")[0] == 404
    status, headers = http_request(running.api, "PUT", "/v1/policy", b"x" * 1000)
    assert (status, headers["Allow"]) == (405, "GET")
    assert http_request(running.api, "DELETE", "/v1/status")[0] == 405
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as broken:
        slow.connect(running.api)
        slow.send(b"GET /v1/sta")
        broken.connect(running.api)
        broken.send(b"\x00\xff\r\n\r\n")
        assert b"400" in broken.recv(1000)
        assert running.status()["schema"] == 1


def test_http_requests_that_never_end_are_ended_and_too_many_are_turned_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.3)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(server.REQUESTS_AT_ONCE[Right.CHANGE] + 4)
        ]
        for sock in slow:
            sock.connect(running.api)  # waits where the queue of the listener is full
            sock.settimeout(LIMIT_S)
        for sock in slow:
            with contextlib.suppress(ConnectionError):  # turned away: closed at once
                sock.send(b"GET /v1/sta")
                assert sock.recv(1000) == b""
    wait_until(running.answers)
    assert running.status()["schema"] == 1


def test_watching_ends_with_130_at_ctrl_c(running: Running) -> None:
    command = [sys.executable, "-c", "from broker.cli import main; main()", "status", "--watch", "--json", "-s"]
    with subprocess.Popen([*command, running.api], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["schema"] == 1
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=LIMIT_S)
    assert (watching.returncode, errors) == (130, b"")


def test_status_has_the_documented_form(running: Running) -> None:
    document = running.status()
    assert {"schema", "host", "interfaces", "flows", "jobs", "alarms"} <= set(document)
    (interface,) = document["interfaces"]
    assert (interface["name"], interface["direction"]) == ("lo", "egress")
    assert interface["capacity_bits_per_s"] > 0
    assert interface["capacity_source"] == "configured"
    names = [entry["name"] for entry in interface["classes"]]
    assert names == ["control", "compute", "storage", "other"]
    for entry in interface["classes"]:
        assert {
            "guarantee_bits_per_s", "floor_bits_per_s", "ceiling_bits_per_s", "demand_bits_per_s",
            "throughput_bits_per_s", "backlog_bytes", "dropped_packets",
        } <= set(entry)  # fmt: skip
        assert set(entry["reason"]) == {"code", "text"}


def test_a_broker_whose_loop_hangs_has_no_status_until_it_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_snapshot, "HANGS_S", 0.5)
    release = threading.Event()
    running.between_rounds(release)
    path = running.api
    wait_until(lambda: http_request(path, "GET", "/v1/status")[0] == 503)
    with pytest.raises(BrokerRejectedError, match="the broker hangs"):
        client.fetch("/metrics", socket_path=path)
    assert http_request(path, "GET", "/v1/log")[0] == 200
    release.set()
    wait_until(lambda: http_request(path, "GET", "/v1/status")[0] == 200)


def test_what_needs_no_snapshot_does_not_ask_the_loop(tmp_path: Path) -> None:
    asked: list[str] = []

    def snapshot() -> None:
        asked.append("asked")

    rights = Authority.of(load('version = 1\n[[interface]]\nname = "lo"\negress = "40 Mbit/s"\n'))
    path = str(tmp_path / "api.sock")
    closing = CloserClient(log=open_log())
    api = server.HttpApi(
        path=path,
        snapshot=snapshot,
        authority=lambda: rights,
        ask=lambda _: pytest.fail("nothing is to be done"),
        usage=lambda **_: pytest.fail("no report is asked for"),
        recent=RecentEvents(),
        closing=closing,
    )
    try:
        assert http_request(path, "GET", "/v1/nothing")[0] == 404
        assert http_request(path, "GET", "/v1/openapi.json")[0] == 200
        assert http_request(path, "GET", "/v1/reload")[0] == 405
        assert not asked
        assert http_request(path, "GET", "/v1/status")[0] == 503
        assert asked == ["asked"]
    finally:
        api.close()
        closing.look()
        closing.close()
