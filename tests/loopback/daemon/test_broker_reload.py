"""What a running daemon does about a new configuration, and about interfaces that come and go."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest
from broker_support import CONFIGURATION, Running, ask, connected, register
from fake_kernel import FakeKernel
from patience import wait_until
from typer.testing import CliRunner

from broker.api import requests, server
from broker.cli.app import app
from broker.cli.exits import ExitCode
from broker.client import http
from broker.daemon.config_store import ConfigStore
from broker.enforce.shapes import shape_of
from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import Measurements
from broker.policy.toml import load
from broker.process.rights import Right
from hive_qos.errors import BrokerRejectedError
from shaping.journal import Journal
from shaping.model.names import JOB_MINOR
from shaping.model.shapes import InterfaceShape
from shaping.model.tree import ChangeClass
from shaping.plan.leaves import RATE_BITS_PER_S_MIN
from shaping.shaper import Shaper


def test_a_reload_takes_a_good_configuration_and_keeps_the_last_good_one(running: Running) -> None:
    assert running.daemon is not None
    running.write(interface="eth7")
    running.daemon.reload()
    wait_until(lambda: [entry["name"] for entry in running.status()["interfaces"]] == ["eth7"])
    assert running.kernel.observe("lo") is None
    too_deep = f"x = {'[' * 3000}{']' * 3000}\n"
    for bad in ("version = 1\n", CONFIGURATION + "[class.storage]\nguarantee = '101 %'\n", too_deep):
        running.write(bad, interface="eth7")
        running.daemon.reload()
        wait_until(lambda: [alarm["code"] for alarm in running.status()["alarms"]] == ["configuration-rejected"])
        assert running.kernel.observe("eth7") is not None
        running.write(interface="eth7")
        running.daemon.reload()
        wait_until(lambda: running.status()["alarms"] == [])
    running.write(interface="eth9")
    running.daemon.reload()
    wait_until(lambda: "eth9" in str(running.status()["alarms"]))
    assert running.kernel.observe("eth7") is not None


def test_who_asks_after_a_reload_was_answered_is_not_shown_the_former_policy(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.api.latest_snapshot.WAIT_S", 30.0)  # however busy the machine is
    for rate in range(30, 40):
        running.write(CONFIGURATION.replace("40 Mbit/s", f"{rate} Mbit/s"))
        http.fetch("/v1/policy", socket_path=running.api)  # so that there is something fresh to be shared
        http.post("/v1/reload", socket_path=running.api)
        policy = json.loads(http.fetch("/v1/policy", socket_path=running.api))
        assert policy["interfaces"][0]["egress_bits_per_s"] == rate * 10**6


def test_a_reload_that_the_kernel_does_not_take_leaves_the_last_good_one_and_an_alarm(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.daemon is not None

    def refuse(shaper: Shaper, shape: InterfaceShape) -> None:
        raise ValueError("a shape that cannot be")

    with monkeypatch.context() as patch:
        patch.setattr(Shaper, "apply", refuse)
        running.write(CONFIGURATION.replace("40 Mbit/s", "10 Mbit/s"))
        running.daemon.reload()
        wait_until(lambda: "a shape that cannot be" in str(running.status()["alarms"]))
    assert running.status()["interfaces"][0]["capacity_bits_per_s"] > 30e6
    running.daemon.reload()
    wait_until(lambda: running.status()["interfaces"][0]["capacity_bits_per_s"] <= 10e6)


def test_a_jobs_leaf_keeps_a_rate_through_a_reload(running: Running) -> None:
    def rates(since: int) -> list[int]:
        changes = [one.spec for one in running.kernel.applied[since:] if isinstance(one, ChangeClass)]
        return [spec.rate_bits_per_s for spec in changes if spec.minor == JOB_MINOR[0]]

    assert running.daemon is not None
    with connected(running.sessions) as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert ask(session, register(), descriptors=(sock.fileno(),))["op"] == "registered"
        wait_until(lambda: rates(0))
        before = len(running.kernel.applied)
        running.write(CONFIGURATION.replace("40 Mbit/s", "20 Mbit/s"))
        running.daemon.reload()
        wait_until(lambda: 0 < running.status()["interfaces"][0]["capacity_bits_per_s"] <= 20e6)
        assert rates(before)
        assert min(rates(before)) > 100 * RATE_BITS_PER_S_MIN


def test_an_interface_that_is_not_there_is_an_alarm_and_is_shaped_when_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.enforce.interfaces.LOOK_S", 0.05)
    late = FakeKernel(["lo", "eth7"])
    running = Running(tmp_path, kernel=late)
    there = ["lo"]
    monkeypatch.setattr(late, "interfaces", lambda: tuple(there))
    running.write(CONFIGURATION + '[[interface]]\nname = "eth7"\negress = "8 Mbit/s"\n')
    running.start()
    try:
        alarms = running.status()["alarms"]
        assert [alarm["subject"] for alarm in alarms if alarm["code"] == "interface-missing"] == ["eth7"]
        assert late.observe("eth7") is None
        assert [entry["shaped"] for entry in running.status()["interfaces"]] == [True, False]
        there.append("eth7")
        wait_until(lambda: "interface-missing" not in str(running.status()["alarms"]))
        assert late.observe("eth7") is not None
    finally:
        running.stop()
    assert late.observe("eth7") is None


def test_a_broker_whose_only_interface_comes_late_waits_for_it_unless_its_configuration_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.enforce.interfaces.LOOK_S", 0.05)
    kernel, there = FakeKernel(["lo"]), ["lo"]
    monkeypatch.setattr(kernel, "interfaces", lambda: tuple(there))
    running = Running(tmp_path, kernel=kernel)
    running.write()
    running.start()
    running.stop()
    there.clear()
    running.start()
    try:
        assert [alarm["code"] for alarm in running.status()["alarms"]] == ["interface-missing"]
        there.append("lo")
        wait_until(lambda: kernel.observe("lo") is not None)
        assert running.daemon is not None
        running.write(interface="eth7")
        running.daemon.reload()
        wait_until(lambda: "no such interface" in str(running.status()["alarms"]))
    finally:
        running.stop()
    (tmp_path / "new").mkdir()
    new = Running(tmp_path / "new", kernel=kernel)
    new.write(interface="eth7")
    new.start()
    assert "no such interface" in str(new.error)


def test_an_interface_that_policy_does_not_name_any_more_is_given_back_at_the_next_start(tmp_path: Path) -> None:
    kernel = FakeKernel(["lo", "eth7"])
    running = Running(tmp_path, kernel=kernel)
    running.write(interface="eth7")
    journal = Journal(tmp_path / "state")
    former = Shaper(kernel, journal)
    policy = load((tmp_path / "broker.toml").read_text())
    allocation = decide(now_s=0.0, state=State(), measurements=Measurements(), policy=policy).allocation
    former.attach(shape_of(allocation.interfaces[0], rules=()))  # and the daemon was killed
    running.write(interface="lo")
    running.start()
    try:
        assert kernel.observe("eth7") is None
        assert journal.interfaces() == ("lo",)
    finally:
        running.stop()


def test_a_reload_on_trial_goes_back_without_a_word_and_stays_with_one(running: Running) -> None:
    def capacity() -> float:
        return running.status()["interfaces"][0]["capacity_bits_per_s"] / 1e6

    def codes() -> list[str]:
        return [alarm["code"] for alarm in running.status()["alarms"]]

    assert http.post("/v1/reload?confirm_s=1", socket_path=running.api).done == "unchanged, nothing to confirm"
    running.write(CONFIGURATION.replace("40 Mbit/s", "10 Mbit/s"))
    assert "on trial" in http.post("/v1/reload?confirm_s=1", socket_path=running.api).done
    wait_until(lambda: codes() == ["configuration-rolled-back"])
    wait_until(lambda: capacity() > 30)
    with pytest.raises(BrokerRejectedError, match="nothing is on trial"):
        http.post("/v1/confirm", socket_path=running.api)
    http.post("/v1/reload?confirm_s=3600", socket_path=running.api)
    wait_until(lambda: codes() == ["configuration-unconfirmed"])
    wait_until(lambda: capacity() <= 10)
    http.post("/v1/confirm", socket_path=running.api)
    wait_until(lambda: codes() == [])
    running.stop()
    running.write("version = 1\n")  # what comes now is the last good one, the confirmed
    running.start()
    wait_until(lambda: codes() == ["configuration-rejected"])
    assert capacity() <= 10


def test_an_interface_that_cannot_be_shaped_at_the_start_does_not_end_what_worked(running: Running) -> None:
    running.stop()
    running.write(interface="eth9")
    running.start()
    assert running.error is None
    wait_until(lambda: "no such interface" in str(running.status()["alarms"]))
    assert [entry["name"] for entry in running.status()["interfaces"]] == ["lo"]
    assert running.kernel.observe("lo") is not None


def test_a_reload_that_is_refused_says_why(running: Running) -> None:
    running.write(CONFIGURATION + "[class.storage]\nguarantee = '101 %'\n")
    with pytest.raises(BrokerRejectedError, match=r"^\[broker-rejected\] not taken.*101") as caught:
        http.post("/v1/reload", socket_path=running.api)
    assert caught.value.status == 422
    for wrong, status in (("abc", 400), ("0", 422), ("nan", 422), ("1e9", 422)):
        with pytest.raises(BrokerRejectedError) as caught:
            http.post(f"/v1/reload?confirm_s={wrong}", socket_path=running.api)
        assert caught.value.status == status


def test_the_command_that_reloads_prints_what_is_wrong_line_by_line(running: Running) -> None:
    running.write(CONFIGURATION + "[class.storage]\nguarantee = '101 %'\nceiling = 'much'\n")
    result = CliRunner().invoke(app, ["reload", "--socket", running.api])
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "{" not in result.output
    assert [line for line in result.output.splitlines() if "class.storage.ceiling = 'much'" in line]
    assert running.status()["interfaces"][0]["capacity_bits_per_s"] > 30e6


def test_a_file_in_the_middle_of_being_written_is_not_taken_though_what_is_there_is_good(running: Running) -> None:
    whole = CONFIGURATION.replace("40 Mbit/s", "10 Mbit/s").format(folder=running.folder, interface="lo")
    with open(running.folder / "broker.toml", "w") as writer:
        writer.write(whole)
        writer.flush()
        with pytest.raises(BrokerRejectedError, match="somebody is writing it"):
            http.post("/v1/reload", socket_path=running.api)
        assert running.daemon is not None
        running.daemon.reload()
        wait_until(lambda: [alarm["code"] for alarm in running.status()["alarms"]] == ["configuration-rejected"])
        assert running.status()["interfaces"][0]["capacity_bits_per_s"] > 30e6
        writer.write('[class.storage]\nceiling = "50 %"\n')
    http.post("/v1/reload", socket_path=running.api)
    wait_until(lambda: 0 < running.status()["interfaces"][0]["capacity_bits_per_s"] <= 10e6)
    wait_until(lambda: running.status()["alarms"] == [])
    storage = next(one for one in running.status()["interfaces"][0]["classes"] if one["name"] == "storage")
    assert storage["ceiling_bits_per_s"] <= 5e6


def test_who_may_only_use_the_broker_may_not_reload_it(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.process.rights.Authority.right_of", lambda self, peer: Right.USE)
    running.write(CONFIGURATION.replace("40 Mbit/s", "10 Mbit/s"))
    for action in ("/v1/reload", "/v1/reload?confirm_s=60", "/v1/confirm"):
        with pytest.raises(BrokerRejectedError, match="may change"):
            http.post(action, socket_path=running.api)
    assert running.status()["interfaces"][0]["capacity_bits_per_s"] > 30e6


def test_a_request_that_the_loop_did_not_take_in_time_is_not_done_later(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.write(CONFIGURATION.replace("40 Mbit/s", "30 Mbit/s"))
    assert "on trial" in http.post("/v1/reload?confirm_s=600", socket_path=running.api).done
    monkeypatch.setattr(requests, "ANSWER_S_MAX", 0.1)
    release = threading.Event()
    running.between_rounds(release)
    with pytest.raises(BrokerRejectedError, match="will not do it"):
        http.post("/v1/confirm", socket_path=running.api)
    release.set()
    monkeypatch.undo()
    assert http.post("/v1/confirm", socket_path=running.api).done == "confirmed", "it was still on trial"


def test_a_request_that_the_loop_has_taken_is_answered_however_long_it_takes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.write(CONFIGURATION.replace("40 Mbit/s", "30 Mbit/s"))
    assert "on trial" in http.post("/v1/reload?confirm_s=600", socket_path=running.api).done
    monkeypatch.setattr(requests, "ANSWER_S_MAX", 0.05)
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    confirm, taken_s = ConfigStore.confirm, []

    def slow(configurations: ConfigStore) -> bool:
        taken_s.append(time.monotonic())
        wait_until(lambda: time.monotonic() > taken_s[0] + 0.5)
        return confirm(configurations)

    monkeypatch.setattr(ConfigStore, "confirm", slow)
    assert http.post("/v1/confirm", socket_path=running.api).done == "confirmed"
