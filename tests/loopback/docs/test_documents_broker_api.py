"""The sockets of a running broker answer as the reference says, and show what it lists."""

from __future__ import annotations

import array
import json
import re
import socket
from typing import Any

import msgspec
import pytest
from broker_support import Running, connected
from documents import DOCS, fences_of, table_below
from patience import wait_until

from broker import client
from broker.api.documents.schema import Flows, Status
from broker.client.protocol import encode
from broker.policy.types import Policy

PAGE = DOCS / "reference/broker-api.md"
MESSAGES, ANSWERS = (
    {message["op"]: message for message in map(json.loads, fence.text.splitlines())}
    for fence in fences_of(PAGE)
    if fence.language == "json"
)
ANSWERED = {
    "hello": "welcome",
    "register": "registered",
    "need": "noted",
    "program": "allowance",
}
"""But `enter`, which would move the tests' own process; tests/lab/daemon/test_broker_daemon.py has it."""


def said(session: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> dict[str, Any]:
    """Send one message and give the answer to it."""
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    session.sendmsg([encode(message)], rights)
    answer = json.loads(session.recv(70_000))
    assert isinstance(answer, dict)
    return answer


def test_every_message_of_the_reference_is_answered_as_it_says(running: Running) -> None:
    table = {row[0]: row[2] for row in table_below(PAGE, "From client to broker").rows}
    assert set(table) == set(MESSAGES)
    with connected(running.sessions, hello=False) as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for name, message in MESSAGES.items():
            if name in ANSWERED:
                answer = said(session, message, udp.fileno() if name == "register" else None)
                shown = ANSWERS[ANSWERED[name]]
                assert re.split("[,:]", table[name])[0] == answer["op"] == shown["op"]
                assert answer.keys() == shown.keys()
                assert {key: answer.get(key) for key in ("id", "v")} == {key: shown.get(key) for key in ("id", "v")}
            elif name != "enter":
                session.send(encode(message))
        assert session.recv(70_000) == b"", "`bye` ends the session"


def test_the_error_of_the_reference_is_the_brokers(running: Running) -> None:
    with connected(running.sessions) as session:
        without = {key: value for key, value in MESSAGES["burst"].items() if key != "deadline_s"}
        assert said(session, {**without, "job": "j"}) == ANSWERS["error"]


def test_the_session_of_the_reference_does_what_the_page_says(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_BROKER", running.sessions)
    (text,) = (one.text for one in fences_of(PAGE) if one.language == "python")
    ends = "session.close()"
    assert text.count(ends) == 1
    names: dict[str, Any] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        exec(text.replace(ends, ""), names | {"sock": sock}, names)
        session = names["session"]
        wait_until(lambda: session.flows)
        (need,) = wait_until(lambda: running.status()["needs"])
        session.close()
    assert need["replicas_at_risk"] == 12
    assert session.rejections == ()


def test_the_metrics_of_the_reference_are_those_that_are_shown(running: Running) -> None:
    text = client.fetch("/metrics", socket_path=running.api).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    rows = table_below(PAGE, "Metrics").rows
    named = {name: row[1] for row in rows for name in row[0].split(", ")}
    # This daemon has no watchdog, and may not have measured the host's load yet.
    late = {name for name in named if name.startswith(("hive_qos_watchdog_", "hive_qos_host_", "hive_qos_memory_"))}
    carrier = {"hive_qos_carrier", "hive_qos_carrier_changes_total"}
    assert kinds.keys() <= named.keys()
    assert named.keys() - kinds.keys() <= late | carrier
    assert {name: kind for name, kind in named.items() if name in kinds} == kinds


def test_what_is_shown_has_the_types_of_the_description(running: Running) -> None:
    """Nothing checks a type when a document is written; this reads one of a running daemon strictly."""
    with connected(running.sessions, hello=False) as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        said(session, MESSAGES["hello"])
        said(session, MESSAGES["register"], udp.fileno())
        session.send(encode({"op": "report", "connections": [{"peer": "127.0.0.1:9", "rtt_s": 0.004}]}))
        session.send(encode({**MESSAGES["burst"], "bytes": {"127.0.0.2": 1_000_000}}))
        wait_until(lambda: len(running.status()["flows"]) > 1 and running.status()["jobs"])
        shown = msgspec.json.decode(client.fetch("/v1/status", socket_path=running.api), type=Status)
    assert [job.bursts[0].announced_bytes for job in shown.jobs] == [1_000_000]
    assert {"ConnectionFlow", "SocketFlow"} <= {type(flow).__name__ for flow in shown.flows}
    msgspec.json.decode(client.fetch("/v1/flows", socket_path=running.api), type=Flows)
    msgspec.json.decode(client.fetch("/v1/policy", socket_path=running.api), type=Policy)
