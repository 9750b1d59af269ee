"""`plan` says what `apply` then does to a real kernel; `apply` on a terminal goes back unless somebody confirms."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from broker.client import http
from shaping.kernel import RealKernel
from shaping.model.tree import Tree
from tools.lab import Lab
from tools.lab.kernel import entered

NEW = CONFIGURATION.replace("20 Mbit/s", "10 Mbit/s") + '[class.other]\nguarantee = "15 %"\n'
EXAMPLES = Path(__file__).parents[3] / "examples" / "config"
CHANGED = re.compile(r"change class ffe0:([0-9a-f]+) \(rate ([0-9]+), ceil ([0-9]+) bit/s")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("changing") as lab:
        yield lab


@pytest.fixture(scope="module")
def started(lab: Lab) -> Iterator[Broker]:
    with broker_in(lab["b"]) as broker:
        broker.start()
        yield broker


@pytest.fixture
def broker(started: Broker) -> Broker:
    """The same one for each test, with the same configuration."""
    (started.folder / "broker.toml").write_text(CONFIGURATION)
    http.post("/v1/reload", socket_path=str(started.folder / "run/broker.sock"))
    wait_until(lambda: root_mbit(started) > 15)
    return started


@dataclass
class Terminal:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    screen: str = ""
    open: bool = field(default=True)

    def sees(self, text: str) -> bool:
        while self.open and select.select([self.master], [], [], 0.05)[0]:
            try:
                data = os.read(self.master, 4096)
            except OSError:  # the other side has ended
                break
            self.screen += data.decode(errors="replace")
        return text in self.screen

    def wait_for(self, text: str) -> None:
        wait_until(lambda: self.sees(text), what=lambda: self.screen)

    def types(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def dies(self) -> None:
        """As an ssh connection that is lost: the kernel sends SIGHUP to who has the terminal."""
        self.open = False
        os.close(self.master)

    def ends(self) -> int:
        wait_until(lambda: self.sees("\0") or self.process.poll() is not None, what=lambda: self.screen)
        return self.process.wait(LIMIT_S)


@contextmanager
def terminal(broker: Broker, *words: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    # setsid --ctty: the terminal is the command's own, so that it is told when the terminal dies.
    argv = broker.host.command(["setsid", "--ctty", *COMMAND, *words])
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "HIVE_BROKER": broker.sessions}
    )
    os.close(slave)
    made = Terminal(process, master)
    try:
        yield made
    finally:
        process.kill()
        process.wait()
        if made.open:
            os.close(master)


def tree_of(broker: Broker) -> Tree:
    with entered(broker.host.namespace):
        kernel = RealKernel()
    try:
        tree = kernel.observe("eth0")
    finally:
        kernel.close()
    assert tree is not None
    return tree


def root_mbit(broker: Broker) -> float:
    return next(spec.ceil_bits_per_s for spec in tree_of(broker).classes if spec.minor == 1) / 1e6


def new_file(broker: Broker) -> str:
    file = broker.folder / "new.toml"
    file.write_text(NEW)
    return str(file)


def installed(broker: Broker) -> str:
    return (broker.folder / "broker.toml").read_text()


def run(broker: Broker, *words: str) -> str:
    return broker.host.run([*COMMAND, *words], env={"HIVE_BROKER": broker.sessions}).stdout


def test_a_plan_has_exactly_the_classes_that_the_kernel_then_has(broker: Broker) -> None:
    file = new_file(broker)
    planned = json.loads(run(broker, "plan", file, "--json"))
    (interface,) = planned["interfaces"]
    wanted = {}
    for line in interface["operations"]:
        found = CHANGED.match(line)
        if found is not None:
            wanted[int(found[1], 16)] = int(found[2]), int(found[3])
    assert len(wanted) > 10
    run(broker, "apply", file, "--yes")

    def differs() -> dict[int, tuple[int, int]]:
        """Ceilings, and the root's rate: the rates below are demand's, and nobody sends here."""
        return {
            spec.minor: (spec.rate_bits_per_s, spec.ceil_bits_per_s)
            for spec in tree_of(broker).classes
            if spec.minor in wanted
            and (
                spec.ceil_bits_per_s != wanted[spec.minor][1]
                or (spec.minor == 1 and spec.rate_bits_per_s != wanted[1][0])
            )
        }

    wait_until(lambda: not differs(), what=differs)
    assert json.loads(run(broker, "plan", "--json"))["changes"] is False


def test_a_plan_says_that_an_interface_is_not_shaped_while_somebodys_qdisc_is_there(broker: Broker) -> None:
    def actions() -> list[str]:
        return [one["action"] for one in json.loads(run(broker, "plan", "--json"))["interfaces"]]

    broker.host.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "9:", "pfifo"])
    assert actions() == ["refused"]
    broker.host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
    wait_until(lambda: actions() == ["unchanged"], what=actions)


def test_a_plan_without_a_broker_is_what_its_start_then_does(lab: Lab) -> None:
    with broker_in(lab["a"]) as broker:
        (broker.folder / "broker.toml").write_text(CONFIGURATION)
        planned = json.loads(run(broker, "plan", str(broker.folder / "broker.toml"), "--json"))
        assert (planned["against"], planned["interfaces"][0]["action"]) == ("kernel", "build")
        operations = [line for line in planned["interfaces"][0]["operations"] if not line.startswith("set gso")]
        broker.start()
        assert f"prior=noqueue operations={len(operations)}" in broker.log
        assert len(tree_of(broker).classes) == sum(line.startswith("add class") for line in operations)
        assert broker.end(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: not broker.watchdogs())
        again = json.loads(run(broker, "plan", str(broker.folder / "broker.toml"), "--json"))
        assert again["interfaces"][0]["action"] == "adopt"
        run(broker, "clear", "--state-dir", str(broker.folder / "state"))


def test_an_example_can_be_applied_and_taken_back(broker: Broker) -> None:
    text = (EXAMPLES / "desktop-by-day.toml").read_text(encoding="utf-8")
    (broker.folder / "new.toml").write_text(text + '[daemon]\ngroup = "nogroup"\n')
    assert "class.storage.match" in run(broker, "apply", str(broker.folder / "new.toml"), "--yes")
    wait_until(lambda: round(root_mbit(broker), 1) == 38.8)
    assert [entry["name"] for entry in broker.status()["schedules"]] in ([], ["office hours"])
    run(broker, "apply", str(broker.folder / "broker.toml.former"), "--yes")
    wait_until(lambda: root_mbit(broker) < 20)


def test_what_somebody_confirms_stays(broker: Broker) -> None:
    with terminal(broker, "apply", new_file(broker), "--confirm-within", "10m") as seen:
        seen.wait_for("Keep it? [y/N]")
        wait_until(lambda: root_mbit(broker) < 10)
        seen.types(b"y\n")
        assert seen.ends() == 0
    assert installed(broker) == NEW
    assert broker.status()["configuration"]["trial_left_s"] is None
    assert broker.status()["alarms"] == []


@pytest.mark.parametrize("way", ["no", "ctrl-c", "the terminal dies", "killed softly", "killed", "ended elsewhere"])
def test_what_nobody_confirms_goes_back_and_its_file_was_never_touched(broker: Broker, way: str) -> None:
    new = new_file(broker)
    before = sorted(os.listdir(broker.folder))
    with terminal(broker, "apply", new, "--confirm-within", "10m") as seen:
        seen.wait_for("Keep it? [y/N]")
        wait_until(lambda: root_mbit(broker) < 10)
        assert installed(broker) == CONFIGURATION
        match way:
            case "no":
                seen.types(b"\n")
            case "ctrl-c":
                seen.types(b"\x03")
            case "the terminal dies":
                seen.dies()
            case "killed softly" | "killed":
                children = f"/proc/{seen.process.pid}/task/{seen.process.pid}/children"
                with open(children, encoding="ascii") as file:
                    pids = [int(pid) for pid in file.read().split()]
                number = signal.SIGKILL if way == "killed" else signal.SIGTERM
                os.kill((pids or [seen.process.pid])[0], number)
                if way == "killed":  # it goes on in the broker, until its time is over
                    run(broker, "apply", "--back")
            case "ended elsewhere":
                run(broker, "apply", "--back")
        assert seen.ends() != 0
    wait_until(lambda: root_mbit(broker) > 15, what=lambda: broker.log)
    assert installed(broker) == CONFIGURATION
    wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)
    assert broker.status()["configuration"]["trial_left_s"] is None
    assert sorted(os.listdir(broker.folder)) == before


def test_a_trial_that_nobody_watches_and_nobody_confirms_leaves_no_bad_file_to_a_later_reload(broker: Broker) -> None:
    assert "on trial" in run(broker, "apply", new_file(broker), "--yes", "--confirm-within", "1s")
    wait_until(lambda: broker.status()["configuration"]["trial_left_s"] is None)
    assert broker.status()["alarms"] == []
    run(broker, "reload")
    assert installed(broker) == CONFIGURATION
    wait_until(lambda: root_mbit(broker) > 15)


def test_a_trial_confirmed_in_another_terminal_ends_the_question(broker: Broker) -> None:
    with terminal(broker, "apply", new_file(broker), "--confirm-within", "10m") as seen:
        seen.wait_for("Keep it? [y/N]")
        run(broker, "apply", "--confirm")
        assert seen.ends() == 0
        assert seen.sees("confirmed from another terminal")
    assert installed(broker) == NEW


@pytest.mark.parametrize("named", [False, True])
def test_a_broker_that_is_restarted_in_a_trial_of_its_own_file_has_not_kept_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (broker.folder / "broker.toml").write_text(NEW)
    monkeypatch.setattr(broker, "configuration", NEW)
    file = [str(broker.folder / "broker.toml")] if named else []
    with terminal(broker, "apply", *file, "--confirm-within", "10m") as seen:
        seen.wait_for("Keep it? [y/N]")
        broker.end(signal.SIGKILL)
        broker.start()
        assert seen.ends() == 5
        assert seen.sees("ended from another terminal")
    wait_until(lambda: root_mbit(broker) > 15)


def test_without_an_answer_in_time_the_former_configuration_and_file_come_back(broker: Broker) -> None:
    with terminal(broker, "apply", new_file(broker), "--confirm-within", "2s") as seen:
        assert seen.ends() == 5
    wait_until(lambda: root_mbit(broker) > 15)
    assert installed(broker) == CONFIGURATION
    wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)


def test_a_pause_lets_every_class_send_what_the_line_carries(broker: Broker) -> None:
    before = tree_of(broker)
    run(broker, "pause", "--for", "10m")
    lowest = min(spec.ceil_bits_per_s for spec in tree_of(broker).classes)
    assert lowest >= max(spec.ceil_bits_per_s for spec in before.classes)
    time.sleep(1.0)  # ten ticks, none of which may write
    assert min(spec.ceil_bits_per_s for spec in tree_of(broker).classes) == lowest
    run(broker, "resume")
    wait_until(lambda: tree_of(broker) == before)
