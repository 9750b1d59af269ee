"""Names that others chose (interfaces, cgroups, commands, jobs) cannot paint, break lines or grow in anything shown."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from status_documents import status

from broker.api.documents.metrics import metrics
from broker.api.documents.pages import encoded
from broker.api.documents.snapshot import DaemonInfo, SessionInfo, Snapshot
from broker.api.documents.status import document
from broker.cli.show.status_table import render
from broker.enforce.device_stack import misplaced
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.state import State
from broker.measure import socket_owners
from broker.measure.socket_owners import CgroupPaths, SocketOwner, SocketOwners
from broker.measure.tcp_diag import TcpConnection
from broker.model.values import Alarm, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.sessions.messages import Hello

POLICY = load('version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n')
NAMES = {
    "escapes": "x\x1b[2J\x1b]0;owned\x07\r\n",
    "long": "y" * 10_240,
    "combining": "z" + "\u0301" * 10_000,
    "bidi": "\u202egnp.exe\u2066",
    "no text": "bad\udcff\ud800",
    "quotes": '"} 1\n# HELP x {[red]\\',
}
FORBIDDEN = set(map(chr, range(32))) - {"\n"} | {"\x7f", "\u202e", "\u2066", "\ud800"}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return NAMES[request.param]


def connection(inode: int = 7) -> TcpConnection:
    return TcpConnection(
        ("10.0.0.1", 1), ("10.0.0.2", 2), uid=0, inode=inode, classid=0, dscp=0, rtt_s=0.01, rtt_s_min=None,
        acked_bytes=1, received_bytes=1, sent_segments=1, retransmitted_segments=0, delivery_rate_bits_per_s=8,
        application_limited=False, cgroup_id=99,
    )  # fmt: skip


def snapshot(name: str, origin: SocketOwner) -> Snapshot:
    measurements = Measurements((InterfaceSample(name="eth0"),))
    hello = Hello(v=1, client=name, job=name)
    return Snapshot(
        host=name,
        daemon=DaemonInfo(1, 1.0, 10, 2, 0, 0.1, 0.01),
        policy=POLICY,
        decision=decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY),
        measurements=measurements,
        sessions=(SessionInfo("s-1", hello.client, hello.job, 1, 0),),
        passed=(),
        tcp=((connection(), "storage"),),
        segments={},
        alarms=(Alarm(code="x", subject=name, text=name),),
        origins={7: origin},
    )


def origin_of(monkeypatch: pytest.MonkeyPatch, name: str) -> SocketOwner:
    """What `SocketOwners` makes of a process and a cgroup that have the name."""
    monkeypatch.setattr(psutil, "pids", lambda: [5])
    monkeypatch.setattr(socket_owners, "_comm", lambda _: name)
    monkeypatch.setattr(socket_owners, "parent_of", lambda _: None)
    origins = SocketOwners("/mount", sockets_of=lambda _: iter([(3, 7)]))
    origins._cgroups = CgroupPaths("/mount", walk=lambda _: iter([("/" + name, 99)]))
    shown = ((connection(), "storage"),)
    for tick in range(10):
        found = origins.look(shown, now_s=float(tick))[7]
    assert found.pid == 5
    return found


def test_processes_and_cgroups_are_shown_in_words_that_are_safe(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    origin = origin_of(monkeypatch, name)
    assert origin.command is not None
    assert origin.cgroup is not None
    for text, length_max in ((origin.command, 64), (origin.cgroup, 1024)):
        assert not (FORBIDDEN | {"\n"}) & set(text)
        assert len(text) <= length_max


def test_the_table_is_not_painted_and_stays_in_its_lines(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    written = io.StringIO()
    value = status(snapshot(name, origin_of(monkeypatch, name)))
    Console(width=80, file=written, highlight=False).print(render(value))
    text = written.getvalue()
    assert not FORBIDDEN & set(text)
    assert len(text) < 8_000


def test_the_document_paints_nothing_even_where_it_is_not_decoded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = encoded(document(snapshot(name, origin_of(monkeypatch, name)))).decode()
    assert not FORBIDDEN & set(text)
    assert json.loads(text)["flows"][0]["pid"] == 5


def test_the_metrics_keep_their_format(name: str) -> None:
    text = metrics(snapshot(name, SocketOwner())).decode()
    line = re.compile(r'(#.*|[a-z_]+(\{([a-z]+="(\\.|[^"\\])*",?)*\})? [-+.0-9eE]+)')
    wrong = [found for found in text.split("\n") if found and not line.fullmatch(found)]
    assert wrong == []
    assert not FORBIDDEN & set(text)
    assert len(text) < 20_000


def test_the_log_writes_one_line(capfd: pytest.CaptureFixture[str], name: str) -> None:
    open_log().warning("interface-note", interface=name, note=f"{name} is there")
    text = capfd.readouterr().err
    assert text.count("\n") == 1
    assert not FORBIDDEN & set(text)
    assert len(text) < 5_000


def test_interfaces_of_whatever_name_can_be_looked_at(tmp_path: Path) -> None:
    for name in ("br0", "bad\udcff\x1b[2J"):
        (tmp_path / name).mkdir()
    (tmp_path / "br0/bridge").mkdir()
    (tmp_path / "br0/lower_bad\udcff\x1b[2J").symlink_to("../bad\udcff\x1b[2J")
    (found,) = misplaced(["br0", "gone"], sys=tmp_path)
    assert found.interface == "br0"
