"""What a running daemon does about a new configuration, and about interfaces that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_support import CONFIGURATION, Running
from patience import wait_until

from broker.config import load
from broker.daemon.shapes import shape_of
from broker.decide import decide
from broker.model import Measurements, State
from shaping.fake import FakeKernel
from shaping.journal import Journal
from shaping.model import InterfaceShape
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


def test_an_interface_that_is_not_there_is_an_alarm_and_is_shaped_when_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.daemon.roster.LOOK_S", 0.05)
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
