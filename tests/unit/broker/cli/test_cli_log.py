"""`hive-qos log`: events in words, filtered, and followed across a restart of the broker."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner

from broker.cli.app import app
from broker.events.recent import RecentEvents
from hive_qos.errors import BrokerUnavailableError

RUN = CliRunner()
FOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "limit-changed": ("debug", {
        "interface": "eth0", "traffic_class": "compute", "job": "llm", "uid": 1000, "limited_by": "link",
        "before": "itself", "text": "it is full, storage sends 5 Mbit/s",
    }),
    "capacity-changed": ("debug", {
        "interface": "eth1", "direction": "sends", "before": "100 Mbit/s", "rate": "30 Mbit/s",
        "reason": "30 Mbit/s measured",
    }),
    "alarm-raised": ("warning", {"code": "no-carrier", "subject": "eth0", "text": "eth0 has no carrier"}),
    "interface-shaped": ("info", {"interface": "eth0", "adopted": False}),
    "interface-failed": ("error", {"interface": "eth0\x1b[31m", "code": "kernel-refused", "error": "EPERM"}),
}  # fmt: skip


class Broker:
    """Answers as the daemon does; `gone` while it starts again."""

    def __init__(self) -> None:
        self.gone = False
        self.start()

    def start(self) -> None:
        self.recent = RecentEvents()

    def fetch(self, target: str, *, socket_path: str | None) -> bytes:
        from broker.api.documents.pages import encoded
        from broker.api.log import recent_log
        from broker.api.questions import LogQuestion, read_query

        if self.gone:
            raise BrokerUnavailableError("nobody is there")
        path, _, query = target.partition("?")
        assert path == "/v1/log"
        assert parse_qs(query)
        return encoded(recent_log(self.recent, read_query(LogQuestion, query)))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    for event, (level, keys) in FOUND.items():
        broker.recent.add(level, event, keys)
    monkeypatch.setattr("broker.client.fetch", broker.fetch, raising=False)
    return broker


def log(*arguments: str) -> Any:
    return RUN.invoke(app, ["log", *arguments])


def test_decisions_and_events_are_told_in_words(broker: Broker) -> None:
    done = log()
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "job llm at eth0 is limited by the link: it is full, storage sends 5 Mbit/s" in text
    assert "eth1 sends at most 30 Mbit/s, 100 Mbit/s before: 30 Mbit/s measured" in text
    assert "warning: alarm-raised eth0: eth0 has no carrier [no-carrier]" in text
    assert "Our queues are on an interface (interface eth0, adopted False)" in text
    assert "error: interface-failed" in text
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "events"),
    [
        (["--level", "warning"], ["alarm-raised", "interface-failed"]),
        (["--interface", "eth1"], ["capacity-changed"]),
        (["--event", "limit-changed", "--event", "interface-shaped"], ["limit-changed", "interface-shaped"]),
        (["-n", "1"], ["interface-failed"]),
        (["--since", "1h"], list(FOUND)),
        (["--since", "2001-01-01", "-n", "2"], ["interface-shaped", "interface-failed"]),
    ],
)
def test_what_is_asked_for_is_shown(broker: Broker, arguments: list[str], events: list[str]) -> None:
    done = log("--json", *arguments)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == events


@pytest.mark.parametrize("arguments", [["--since", "soon"], ["--level", "bad"], ["-n", "0"]])
def test_a_mistake_is_named(broker: Broker, arguments: list[str]) -> None:
    assert log(*arguments).exit_code == 2


def test_what_was_not_found_and_what_is_not_shown_is_said_beside_the_output(broker: Broker) -> None:
    nothing = log("--event", "nosuch")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "journalctl -u hive-qos" in nothing.stderr
    assert "4 earlier events are not shown: -n 5" in log("-n", "1").stderr


def test_following_from_a_time_since_which_nothing_came_shows_nothing_of_before(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0

    def sleep(duration_s: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            broker.recent.add("info", "daemon-stopped", {})
        elif rounds == 3:
            raise KeyboardInterrupt

    since = datetime.datetime.now().astimezone() + datetime.timedelta(milliseconds=1)
    monkeypatch.setattr(time, "sleep", sleep)
    done = log("--follow", "--json", "--since", since.isoformat())
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["daemon-stopped"]


def test_following_goes_on_with_the_next_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0

    def sleep(duration_s: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            broker.recent.add("info", "daemon-stopped", {})
        elif rounds in (2, 3):
            broker.gone = True
        elif rounds == 4:
            broker.gone = False
            broker.start()
            broker.recent.add("info", "daemon-ready", {})
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    done = log("--follow", "--json", "-n", "1")
    assert done.exit_code == 130
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events == ["interface-failed", "daemon-stopped", "daemon-ready"]
    assert done.stderr.count("nobody is there; trying again") == 1
