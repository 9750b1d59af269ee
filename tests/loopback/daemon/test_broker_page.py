"""The status page's listener: what it shows to whom, that it changes nothing, and that nobody can hold it up."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_support import CONFIGURATION, Running, ask, connected
from patience import LIMIT_S, wait_until

from broker.page import page, server

FAMILIES = ["127.0.0.1", "::1"]


def free_port(address: str) -> int:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as found:
        return int(found.getsockname()[1])


def section(address: str, port: int) -> str:
    return f'[page]\nlisten = "[{address}]:{port}"\nnames = ["trainer-1.example"]\n'


class Served:
    """A daemon with a page, and how to ask it."""

    def __init__(self, running: Running, address: str) -> None:
        self.running, self.address, self.port = running, address, free_port(address)

    def start(self) -> None:
        self.running.write(CONFIGURATION + section(self.address, self.port))
        self.running.start()
        wait_until(lambda: self.get("/figures.json")[0] == 200)

    def get(
        self, target: str, *, method: str = "GET", host: str | None = None, source: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        whence = (source, 0) if source else None
        connection = http.client.HTTPConnection(self.address, self.port, timeout=LIMIT_S, source_address=whence)
        try:
            connection.putrequest(method, target, skip_host=host is not None)
            if host is not None:
                connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        except ConnectionError:
            return 0, {}, b""
        finally:
            connection.close()

    def figures(self, query: str = "") -> dict[str, Any]:
        found = json.loads(self.get(f"/figures.json{query}")[2])
        assert isinstance(found, dict)
        return found


@pytest.fixture(params=FAMILIES)
def served(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(server, "REQUESTS_BURST", 10_000.0)
    monkeypatch.setattr(server, "ADDRESS_BURST", 10_000.0)
    served = Served(Running(tmp_path), request.param)
    served.start()
    yield served
    served.running.stop()


def test_nothing_listens_unless_the_file_says_so(running: Running) -> None:
    assert running.daemon is not None
    assert running.daemon._components.page._server is None


def test_every_file_is_served_with_headers_that_keep_other_sites_out(served: Served) -> None:
    for target, (_, kind) in server.FILES.items():
        status, headers, body = served.get(target)
        assert (status, headers["Content-Type"]) == (200, kind)
        assert body
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not {"Set-Cookie", "Access-Control-Allow-Origin"} & set(headers)
    assert b"http://" not in served.get("/")[2] + served.get("/page.js")[2] + served.get("/page.css")[2]
    assert b"https://" not in served.get("/")[2] + served.get("/page.js")[2] + served.get("/page.css")[2]


def test_metrics_are_served_there_too(served: Served) -> None:
    status, headers, body = served.get("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"hive_qos_ticks_total" in body


def test_the_page_only_reads(served: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for target in ("/", "/v1/reload", "/figures.json"):
            status, headers, _ = served.get(target, method=method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
    for target in ("/v1/status", "/v1/policy", "/v1/flows", "/v1/usage", "/../server.py", "/%2e%2e/server.py"):
        assert served.get(target)[0] == 404
    assert served.get("/figures.json", method="HEAD")[::2] == (200, b"")


def test_a_foreign_name_that_points_here_gets_nothing(served: Served) -> None:
    for host in ("evil.example", "evil.example:8710", "", "localhost.evil.example", "[::1", "127.0.0.1.evil.example"):
        status, _, body = served.get("/figures.json", host=host)
        assert (status, b"interfaces" in body) == (421, False)
    for host in (
        "localhost:8710",
        "127.0.0.1",
        "[::1]:8710",
        "192.0.2.7:1",
        "Trainer-1.example:8710",
        socket.gethostname(),
    ):
        assert served.get("/figures.json", host=host)[0] == 200


def test_the_figures_name_no_user_no_program_and_no_connection(served: Served) -> None:
    with connected(served.running.sessions, hello=False) as sock:
        hello = {"v": 1, "op": "hello", "client": "secret-client", "job": "resnet\x1b[31m", "pid": 1}
        assert ask(sock, hello)["op"] == "welcome"
        wait_until(lambda: served.running.status()["sessions"])
        wait_until(lambda: served.figures()["view"]["up_s"] > served.running.status()["daemon"]["up_s"] - 2)
        text = served.get("/figures.json")[2].decode()
    view = json.loads(text)["view"]
    assert set(view) == {
        "host", "version", "up_s", "interfaces", "jobs", "holds", "leases", "schedules", "alarms",
    }  # fmt: skip
    assert [one["name"] for one in view["interfaces"][0]["classes"]] == ["control", "compute", "storage", "other"]
    assert all(one["uid"] is None for one in view["jobs"])
    assert all(one["measured"] is None for one in view["interfaces"])
    assert "secret-client" not in text
    assert "\\u001b" not in text


def test_the_history_is_asked_for_in_steps_and_from_a_step_on(served: Served) -> None:
    wait_until(lambda: served.figures()["span"]["series"])
    span = served.figures()["span"]
    assert span["step_s"] == 1
    assert all(len(one["bits_per_s"]) == span["count"] for one in span["series"])
    last = span["first"] + span["count"] - 1
    assert served.figures(f"?since={last}")["span"]["count"] <= LIMIT_S
    assert served.figures("?step_s=60")["span"]["step_s"] == 60
    for query in ("?step_s=7", "?step_s=x", "?since=-1", "?a=1&b=2&c=3", "?&&", "?since=" + "9" * 5000):
        assert served.get(f"/figures.json{query}")[0] in (400, 414)


def test_slow_clients_hold_up_nobody_for_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.3)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((served.address, served.port), LIMIT_S))
            for _ in range(server.REQUESTS_AT_ONCE)
        ]
        for sock in slow:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"GET /figures")
        for sock in slow:
            with contextlib.suppress(ConnectionError):
                assert sock.recv(1000) == b""
        wait_until(lambda: served.get("/")[0] == 200)
    assert served.running.status()["schema"] == 1


def test_too_many_requests_are_turned_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.running.daemon is not None
    opened = served.running.daemon._components.page
    wait_until(lambda: opened._server)  # it answers before the daemon's thread has noted it
    monkeypatch.setattr(opened._server._server._bucket, "take", lambda **_: False)
    assert served.get("/") == (0, {}, b"")
    monkeypatch.undo()
    assert served.get("/")[0] == 200


def test_one_address_that_asks_without_end_shuts_no_other_out(tmp_path: Path) -> None:
    served = Served(Running(tmp_path), "127.0.0.1")
    served.start()
    flood = [served.get("/metrics", source="127.0.0.2")[0] for _ in range(60)]
    other = [served.get("/metrics")[0] for _ in range(10)]
    served.running.stop()
    assert 0 in flood, "it was turned away"
    assert other == [200] * 10


def test_a_reload_moves_the_page_and_takes_it_away(served: Served) -> None:
    assert served.running.daemon is not None
    old, served.port = served.port, free_port(served.address)
    served.running.write(CONFIGURATION + section(served.address, served.port))
    served.running.daemon.reload()
    wait_until(lambda: _answers(served) and served.get("/")[0] == 200)
    served.port = old
    assert not _answers(served)
    served.running.write(CONFIGURATION)
    served.running.daemon.reload()
    wait_until(lambda: served.running.daemon._components.page._server is None)


def _answers(served: Served) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((served.address, served.port), LIMIT_S):
        return True
    return False


def test_a_port_in_use_is_an_alarm_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "AGAIN_S", 0.05)
    running = Running(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running.write(CONFIGURATION + section("127.0.0.1", taken.getsockname()[1]))
        running.start()
        wait_until(lambda: [one["code"] for one in running.status()["alarms"] if one["subject"] == "page"])
    try:
        wait_until(lambda: not [one for one in running.status()["alarms"] if one["subject"] == "page"])
    finally:
        running.stop()
