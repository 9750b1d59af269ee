"""Log events reach a collector over OTLP/HTTP, and one that is away costs records, never the daemon's time."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_support import CONFIGURATION, Running
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from patience import LIMIT_S, wait_until

from broker import client
from broker.events import telemetry
from broker.events.telemetry import BEFORE_START_MAX, ENDPOINTS, from_environment


class Collector:
    """Takes OTLP log records. While `refuses`, it answers 400, which the SDK does not try again."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, dict[str, Any]]] = []
        self.resources: list[dict[str, str]] = []
        self.refuses, self.refused = False, 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.refused += collector.refuses
                if not collector.refuses:
                    collector.take(ExportLogsServiceRequest.FromString(body))
                self.send_response(400 if collector.refuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def take(self, request: ExportLogsServiceRequest) -> None:
        for of_resource in request.resource_logs:
            self.resources.append({one.key: one.value.string_value for one in of_resource.resource.attributes})
            for record in (one for scope in of_resource.scope_logs for one in scope.log_records):
                keys = {one.key: one.value.string_value or one.value.int_value for one in record.attributes}
                self.records.append((record.event_name, record.severity_text, keys))

    def events(self) -> list[str]:
        return [name.removeprefix("hive_qos.") for name, _, _ in self.records]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT_S)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "20")
    yield collector
    collector.close()


@contextlib.contextmanager
def daemon_in(folder: Path, environ: dict[str, str], text: str = CONFIGURATION) -> Iterator[Running]:
    running = Running(folder, telemetry=from_environment(environ, host="trainer-1"))
    running.write(text)
    running.start()
    try:
        yield running
    finally:
        running.stop()
    assert running.error is None


def test_nothing_is_sent_unless_the_environment_names_a_collector() -> None:
    assert from_environment({}, host="h") is None
    assert from_environment({ENDPOINTS[0]: ""}, host="h") is None
    assert from_environment({ENDPOINTS[0]: "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, host="h") is None


def test_a_missing_sdk_is_said_by_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._logs", None)
    with pytest.raises(ImportError, match="opentelemetry"):
        from_environment({ENDPOINTS[0]: "http://127.0.0.1:9"}, host="h")


def test_events_of_a_daemons_life_arrive_with_their_keys_and_alarms(tmp_path: Path, collector: Collector) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = f'[page]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n'
        with daemon_in(tmp_path, {ENDPOINTS[0]: collector.url}, CONFIGURATION + page):
            wait_until(lambda: {"daemon-ready", "alarm-raised"} <= set(collector.events()))
    wait_until(lambda: "daemon-stopped" in collector.events())
    by_event = {name.removeprefix("hive_qos."): (level, keys) for name, level, keys in collector.records}
    level, keys = by_event["alarm-raised"]
    assert (level, keys["code"], keys["subject"]) == ("warning", "page-unavailable", "page")
    assert by_event["daemon-ready"][1]["interfaces"] == "lo"
    assert collector.events().index("interface-shaped") < collector.events().index("daemon-ready")
    assert collector.resources[0].items() >= {"service.name": "hive-qos", "host.name": "trainer-1"}.items()


def test_a_collector_that_refuses_is_said_once_and_again_when_it_is_well(tmp_path: Path, collector: Collector) -> None:
    collector.refuses = True
    with daemon_in(tmp_path, {ENDPOINTS[0]: collector.url}) as running:
        wait_until(lambda: collector.refused >= 2)  # the second is that of "telemetry-failed" itself
        collector.refuses = False
        assert running.daemon is not None
        running.daemon.reload()
        wait_until(lambda: "telemetry-recovered" in collector.events())
        assert "telemetry-failed" not in collector.events()


def test_a_collector_that_never_answers_holds_up_neither_ticks_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "CLOSE_S_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with daemon_in(tmp_path, {ENDPOINTS[0]: url}) as running:
            before = running.status()["daemon"]["ticks"]
            wait_until(lambda: running.status()["daemon"]["ticks"] > before + 3)


def test_a_host_is_shaped_and_told_of_a_variable_that_the_sdk_does_not_take(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "256")  # below a batch
    with daemon_in(tmp_path, {ENDPOINTS[0]: collector.url}) as running:
        assert running.error is None
        ticks = running.status()["daemon"]["ticks"]
        wait_until(lambda: running.status()["daemon"]["ticks"] > ticks)
        events = json.loads(client.fetch("/v1/log", socket_path=running.api))["events"]
        (told,) = [one for one in events if one["event"] == "telemetry-failed"]
        assert "none is sent" in told["keys"]["note"]


def test_what_waits_before_the_start_is_bounded(collector: Collector) -> None:
    kept = from_environment({ENDPOINTS[0]: collector.url}, host="h")
    assert kept is not None
    for number in range(BEFORE_START_MAX + 10):
        kept.take({"event": "probe", "level": "info", "number": number})
    kept.start(tell=lambda _: None)
    kept.close()
    wait_until(lambda: len(collector.records) == BEFORE_START_MAX)
    assert [keys["number"] for _, _, keys in collector.records][:2] == [10, 11]
