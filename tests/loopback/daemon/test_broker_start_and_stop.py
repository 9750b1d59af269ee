"""How the daemon starts, or says why not, and what it leaves when it stops: interfaces, sockets, a recording."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from broker_support import CONFIGURATION, Running, claim_of, connected
from patience import LIMIT_S, wait_until

from broker.client.protocol import encode
from broker.daemon.composition import Environment
from broker.daemon.config_store import ConfigStore, Source
from broker.daemon.daemon import Daemon
from broker.daemon.peer_link import PeerLink
from broker.enforce.shapes import shape_of
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.recording import replay
from broker.law.state import State
from broker.model.values import Measurements
from broker.policy.toml import load
from broker.process.notify import Notifier
from hive_qos.errors import BrokerRejectedError, ConfigurationError, PrivilegeError, ShapingError
from shaping.journal import Journal
from shaping.shaper import Shaper
from transport.identity import ca_init, ca_issue


@pytest.mark.parametrize("what", ["interface", "privilege", "directory"])
def test_a_start_that_cannot_be_is_one_clear_error_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    running = Running(tmp_path)
    running.write(interface="eth9" if what == "interface" else "lo")
    if what == "privilege":
        running.kernel.privileged = False
    if what == "directory":
        (tmp_path / "run").write_text("a file")
    running.start()
    expected = PrivilegeError if what == "privilege" else ConfigurationError
    assert isinstance(running.error, expected), running.error
    assert not (tmp_path / "run/session.sock").exists()
    assert running.kernel.observe("lo") is None


def test_a_host_is_shaped_whatever_is_wrong_with_the_way_to_other_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.daemon.peer_opening.RETRY_S", 0.05)
    running = Running(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        files = "".join(
            f'{key} = "{tmp_path}/{name}"\n'
            for key, name in (("ca", "ca/ca.crt"), ("certificate", "host.crt"), ("key", "host.key"))
        )
        running.write(CONFIGURATION + f'[peers]\nlisten = "{listen}"\n{files}')
        running.start()
        try:
            assert running.error is None
            assert running.kernel.observe("lo") is not None
            (alarm,) = running.status()["alarms"]
            assert (alarm["code"], "ca.crt" in alarm["text"]) == ("peers-unavailable", True)
            ca_init(tmp_path / "ca")
            ca_issue(tmp_path / "ca", "host", role="broker", addresses=["127.0.0.1"], out=tmp_path)
            wait_until(lambda: f"{listen!r}: cannot bind" in running.status()["alarms"][0]["text"])
            taken.close()
            wait_until(lambda: running.status()["alarms"] == [])
        finally:
            running.stop()
    assert running.error is None


def test_a_second_daemon_is_refused_and_the_first_does_not_notice(running: Running) -> None:
    second = Running(running.folder)
    second.write()
    second.start()  # returns as soon as the first one answers
    assert second.thread is not None
    second.thread.join(LIMIT_S)
    assert isinstance(second.error, BrokerRejectedError)
    assert "another broker" in str(second.error)
    assert running.status()["schema"] == 1


def test_a_second_daemon_of_the_namespace_is_refused_whatever_its_directories(running: Running, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    second = Running(tmp_path / "other", kernel=running.kernel, namespace=claim_of(running.folder))
    second.write()
    second.start()
    assert isinstance(second.error, BrokerRejectedError)
    assert f"another broker (pid {os.getpid()}, user {os.geteuid()})" in str(second.error)
    assert not (tmp_path / "other/state").exists()
    assert running.kernel.observe("lo") is not None


def test_a_start_that_finds_none_of_its_interfaces_takes_no_tree_away(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write()
    allocation = decide(
        now_s=0.0, state=State(), measurements=Measurements(), policy=load((tmp_path / "broker.toml").read_text())
    ).allocation
    Shaper(running.kernel, Journal(tmp_path / "state")).attach(shape_of(allocation.interfaces[0], rules=()))
    running.write(interface="eth9")
    running.start()
    assert isinstance(running.error, ConfigurationError)
    assert running.kernel.observe("lo") is not None


def test_a_stop_gives_interfaces_back_whatever_the_way_to_other_brokers_says(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: PeerLink) -> None:
        raise RuntimeError("an engine that does not end")

    monkeypatch.setattr(PeerLink, "close", refuse)
    running.stop()
    assert running.error is None
    assert running.kernel.observe("lo") is None


def test_a_stop_gives_interfaces_back_and_removes_the_sockets(running: Running) -> None:
    assert running.kernel.observe("lo") is not None
    running.stop()
    assert running.kernel.observe("lo") is None
    assert not Path(running.sessions).exists()
    assert not Path(running.api).exists()


def test_a_stop_gives_every_interface_back_that_it_can_and_says_what_it_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path)
    running.write(CONFIGURATION + '[[interface]]\nname = "eth7"\negress = "8 Mbit/s"\n')
    running.start()
    detach = Shaper.detach

    def fail(shaper: Shaper, interface: str) -> tuple[str, ...]:
        if interface == "lo":
            raise OSError(28, "No space left on device")
        return detach(shaper, interface)

    monkeypatch.setattr(Shaper, "detach", fail)
    running.stop()
    assert running.kernel.observe("eth7") is None
    assert isinstance(running.error, ShapingError)
    assert "lo: [Errno 28]" in str(running.error)


def test_a_stop_that_comes_before_the_start_touches_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write()
    source = Source(read=lambda: (tmp_path / "broker.toml").read_text(), parse=load)
    configurations = ConfigStore(source, log=open_log())
    given = Environment(configurations, kernel=running.kernel, classifier=None, log=open_log())
    daemon = Daemon(given, namespace=claim_of(tmp_path))
    daemon.stop()
    daemon.run()
    assert running.kernel.observe("lo") is None


def test_a_recording_of_the_daemon_replays_to_the_same_bytes(running: Running) -> None:
    with connected(running.sessions) as session:
        burst = {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"127.0.0.1": 4_000_000}, "deadline_s": 60.0}
        session.send(encode(burst))
        wait_until(lambda: running.status()["daemon"]["ticks"] > 20)
    running.stop()
    lines = (running.folder / "record.jsonl").read_text().splitlines()
    result = replay(lines)
    assert result.ticks >= 20
    assert result.first_difference is None


def test_a_supervisor_hears_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(LIMIT_S)
        supervisor.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        running = Running(tmp_path, notifier=Notifier(environment))
        running.write()
        running.start()
        assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=shaping lo")
        assert supervisor.recv(1000) == b"WATCHDOG=1"
        running.stop()
        heard = b""
        while heard != b"STOPPING=1":
            heard = supervisor.recv(1000)


def test_a_recording_that_cannot_be_written_any_more_ends_with_an_alarm_and_nothing_else_does(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write(CONFIGURATION.replace("{folder}/record.jsonl", "/dev/full"))
    running.start()
    try:
        wait_until(lambda: "recording-ended" in [alarm["code"] for alarm in running.status()["alarms"]])
        ticks = running.status()["daemon"]["ticks"]
        wait_until(lambda: running.status()["daemon"]["ticks"] > ticks + 3)
        assert "No space left" in str(running.status()["alarms"])
    finally:
        running.stop()
    assert running.error is None
