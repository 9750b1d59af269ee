"""The watchdog in a host of the lab: whatever becomes of the daemon, nobody stays held back.

Storage's ceiling is decided to be its floor, 2 % of 20 Mbit/s, for as long as the daemon decides: what a hold does to
it for a moment. A death in the middle of one would leave it so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, SEND_TCP, SINK, Broker, broker_in, two_hosts
from patience import LIMIT_S, most_of, wait_until

from broker.process.watchdog import ALWAYS_S
from shaping.kernel import RealKernel
from shaping.model.names import INNER_MINOR, LEAF_MINOR
from tools.lab import Lab
from tools.lab.kernel import entered

LINE_BITS_PER_S = 20_000_000
HELD = CONFIGURATION.replace("[class.storage]", '[class.storage]\nguarantee = "2 %"\nceiling = "2 %"')
HELD_BITS_PER_S = LINE_BITS_PER_S * 2 // 100
STORAGE_PORT = 4873
PROMISED_S = 1.0
"""From the death, or the last beat, until everybody may use the line."""
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("watchdog") as lab:
        yield lab


@pytest.fixture
def kernel(lab: Lab) -> Iterator[RealKernel]:
    with entered(lab["a"].namespace):
        made = RealKernel()
        yield made
        made.close()


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    with broker_in(lab["a"], configuration=HELD) as broker:
        broker.start()
        yield broker
        broker.stop()
        wait_until(lambda: not broker.watchdogs(), what=lambda: broker.watchdogs())


def storage_ceiling(kernel: RealKernel) -> int:
    tree = kernel.observe("eth0")
    assert tree is not None
    return next(spec.ceil_bits_per_s for spec in tree.classes if spec.minor == LEAF_MINOR["storage"])


def is_held(kernel: RealKernel) -> bool:
    return storage_ceiling(kernel) <= HELD_BITS_PER_S


def seconds_until_open(kernel: RealKernel) -> float:
    """How long it takes until storage may use the line: under a second, and what a machine adds that stands still."""
    began_s = time.monotonic()
    wait_until(lambda: storage_ceiling(kernel) == LINE_BITS_PER_S, pause_s=0.002)
    return time.monotonic() - began_s


def everything_is_open_and_floors_stand(kernel: RealKernel) -> None:
    tree = kernel.observe("eth0")
    assert tree is not None
    assert {spec.ceil_bits_per_s for spec in tree.classes} == {LINE_BITS_PER_S}
    rates = {spec.minor: spec.rate_bits_per_s for spec in tree.classes}
    assert rates[INNER_MINOR["storage"]] == HELD_BITS_PER_S * 97 // 100


def test_a_death_in_the_middle_of_a_hold_opens_the_ceilings_within_a_second(
    broker: Broker, kernel: RealKernel, record_property: Callable[[str, object], None]
) -> None:
    def killed() -> float:
        assert is_held(kernel)
        broker.end(signal.SIGKILL)
        open_after_s = seconds_until_open(kernel)
        everything_is_open_and_floors_stand(kernel)
        wait_until(lambda: not broker.watchdogs())
        broker.start()
        return open_after_s

    record_property("open_after_s", most_of(killed, lambda open_after_s: open_after_s < PROMISED_S))
    assert is_held(kernel)


def test_traffic_that_was_held_back_flows_at_the_lines_rate_after_a_death(
    broker: Broker, lab: Lab, kernel: RealKernel
) -> None:
    sink = lab["b"].popen(["python3", "-c", SINK.replace("4000", str(STORAGE_PORT))], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    sink.stdout.close()
    send = SEND_TCP.replace("4000", str(STORAGE_PORT))
    size = LINE_BITS_PER_S // 8  # a second at the line's rate, 50 at what it is held to
    sender = broker.host.popen(["python3", "-c", send, lab["b"].address, str(size)])
    wait_until(lambda: broker.sent_bytes("storage") > 10_000, what=broker.status)
    broker.end(signal.SIGKILL)
    assert sender.wait(LIMIT_S) == 0
    sink.kill()
    sink.wait()


def test_ticks_that_stop_open_the_ceilings_within_a_second_and_ticks_that_come_back_decide_anew(
    broker: Broker, kernel: RealKernel, record_property: Callable[[str, object], None]
) -> None:
    def stopped() -> float:
        assert broker.process is not None
        assert is_held(kernel)
        broker.process.send_signal(signal.SIGSTOP)
        open_after_s = seconds_until_open(kernel)
        everything_is_open_and_floors_stand(kernel)
        broker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: is_held(kernel), what=broker.status)
        return open_after_s

    for _ in range(2):
        stopped()
    record_property("open_after_s", most_of(stopped, lambda open_after_s: open_after_s < PROMISED_S))
    assert broker.status()["daemon"]["watchdog"]["openings"] >= 3
    wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)


def test_a_daemon_killed_after_it_was_stopped_leaves_all_open(broker: Broker, kernel: RealKernel) -> None:
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    seconds_until_open(kernel)
    broker.end(signal.SIGKILL)
    wait_until(lambda: not broker.watchdogs())
    everything_is_open_and_floors_stand(kernel)


def test_an_orderly_stop_leaves_neither_a_tree_nor_a_watchdog(broker: Broker) -> None:
    (watchdog,) = broker.watchdogs()
    said = broker.status()["daemon"]["watchdog"]
    assert (said["pid"], said["alive"], said["started"]) == (watchdog, True, 1)
    assert broker.end(signal.SIGTERM) == 0
    assert broker.watchdogs() == []
    assert "htb" not in broker.root_qdisc()


def test_a_watchdog_that_is_killed_is_replaced_and_does_its_work(broker: Broker, kernel: RealKernel) -> None:
    (first,) = broker.watchdogs()
    os.kill(first, signal.SIGKILL)

    def replaced() -> bool:
        watchdog = broker.status()["daemon"]["watchdog"]
        return bool(watchdog["alive"] and watchdog["pid"] != first)

    wait_until(replaced, what=broker.status)
    wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)
    assert is_held(kernel)
    broker.end(signal.SIGKILL)
    seconds_until_open(kernel)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_when_both_are_gone_the_next_daemon_adopts_and_is_right_again(
    broker: Broker, kernel: RealKernel, number: signal.Signals, record_property: Callable[[str, object], None]
) -> None:
    (watchdog,) = broker.watchdogs()
    os.kill(watchdog, signal.SIGSTOP)  # first, so that it is neither replaced nor opens
    broker.end(signal.SIGKILL)
    os.kill(watchdog, number)
    began_s = time.monotonic()
    broker.start()
    record_property("right_after_s", time.monotonic() - began_s)
    assert "adopted=true" in broker.log
    assert is_held(kernel)
    assert len(broker.watchdogs()) == 1


def test_when_both_are_gone_the_next_command_opens_what_is_held_back_and_says_so(
    broker: Broker, kernel: RealKernel
) -> None:
    status = [*COMMAND, "status", "--socket", str(broker.folder / "run/broker.sock")]
    (watchdog,) = broker.watchdogs()
    os.kill(watchdog, signal.SIGSTOP)
    broker.end(signal.SIGKILL)
    os.kill(watchdog, signal.SIGKILL)
    wait_until(lambda: not broker.watchdogs(), what=broker.watchdogs)
    assert is_held(kernel)
    shown = broker.host.run(status, check=False)
    assert shown.returncode == 4
    assert "held back traffic on eth0; nobody is held back any more" in shown.stderr
    tree = kernel.observe("eth0")  # without the journal, which another directory has, the root's rate is what is known
    assert tree is not None
    assert {spec.ceil_bits_per_s for spec in tree.classes} == {LINE_BITS_PER_S * 97 // 100}
    assert "all open; `hive-qos clear` removes them" in broker.host.run(status, check=False).stderr
    broker.host.run([*COMMAND, "clear", "--state-dir", str(broker.folder / "state")])
    assert "classes" not in broker.host.run(status, check=False).stderr


def test_when_both_are_gone_what_runs_always_opens_and_before_that_it_leaves_them_alone(
    broker: Broker, kernel: RealKernel
) -> None:
    argv = [sys.executable, "-P", "-m", "broker.process.watchdog", "--always", str(broker.folder / "state")]
    (watchdog,) = broker.watchdogs()
    always = broker.host.popen(argv, cwd=ROOT)
    try:
        time.sleep(2.0 * ALWAYS_S)
        assert is_held(kernel)
        os.kill(watchdog, signal.SIGSTOP)
        broker.end(signal.SIGKILL)
        os.kill(watchdog, signal.SIGKILL)
        seconds_until_open(kernel)
        everything_is_open_and_floors_stand(kernel)
    finally:
        always.send_signal(signal.SIGTERM)
        assert always.wait(LIMIT_S) == 0


def test_a_frozen_broker_is_not_said_to_be_absent_and_its_tree_is_left_to_its_watchdog(broker: Broker) -> None:
    status = [*COMMAND, "status", "--socket", str(broker.folder / "run/broker.sock")]
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        shown = broker.host.run(status, check=False)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    assert shown.returncode == 4
    assert "no answer within 3 s; a broker is there but hangs" in shown.stderr
    assert "classes" not in shown.stderr


def test_the_restore_units_command_opens_what_is_left_and_nothing_else(broker: Broker, kernel: RealKernel) -> None:
    once = [sys.executable, "-P", "-m", "broker.process.watchdog", "--once", str(broker.folder / "state")]
    broker.end(signal.SIGKILL)
    wait_until(lambda: not broker.watchdogs())
    tc = ["tc", "class", "change", "dev", "eth0", "parent", "ffe0:30", "classid", "ffe0:310", "htb", "prio", "3"]
    rate = f"{HELD_BITS_PER_S * 97 // 100}bit"
    broker.host.run([*tc, "rate", rate, "ceil", rate, "burst", "16k", "cburst", "16k", "quantum", "1514"])
    assert is_held(kernel)
    assert "1 classes opened" in broker.host.run(once, cwd=ROOT).stderr
    everything_is_open_and_floors_stand(kernel)
    assert broker.host.run(once, cwd=ROOT).stderr == ""
    broker.host.run([*COMMAND, "clear", "--state-dir", str(broker.folder / "state")])
    broker.host.run(["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "5:", "htb", "default", "1"])
    broker.host.run(["tc", "class", "add", "dev", "eth0", "parent", "5:", "classid", "5:1", "htb", "rate", "1mbit"])
    try:
        before = broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout
        assert broker.host.run(once, cwd=ROOT).stderr == ""
        assert broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout == before
    finally:
        broker.host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
