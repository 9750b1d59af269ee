"""One broker for a network namespace: nobody but root can keep it from starting, and a second one is always found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import wait_until

from broker.process.namespace_claim import NAME, claims
from tools.lab import Lab

USER = "nobody"
HINDER = """
import fcntl, os, socket, sys
name, pid = sys.argv[1:]
namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
fcntl.flock(namespace, fcntl.LOCK_EX)
pids = os.stat("/proc/self/ns/pid").st_ino
held = []
for word in (name, f"{name}/", f"{name}/{pids}/{pid}/0", f"{name}/{pids}/1/0"):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind("\\0" + word)
    held[-1].listen()
if os.fork():
    os._exit(0)  # who locked is gone, and his child holds it
print(flush=True)
sys.stdin.read()
"""
WATCHDOG_ONCE = [sys.executable, "-P", "-m", "broker.process.watchdog", "--once"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("charge") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    with broker_in(lab["a"]) as broker:
        yield broker
        broker.stop()
        wait_until(lambda: not broker.watchdogs(), what=broker.watchdogs)


@contextmanager
def hindered(lab: Lab) -> Iterator[None]:
    """An ordinary user takes what he can: the namespace's file, and names that brokers use."""
    argv = [sys.executable, "-c", HINDER, NAME, str(os.getpid())]
    process = lab["a"].popen(argv, user=USER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    try:
        yield
    finally:
        process.stdin.close()
        process.stdout.read()  # until the child has ended
        process.stdout.close()
        process.wait()


def ceilings(broker: Broker) -> str:
    return broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout


def test_no_user_keeps_a_broker_from_starting_or_its_ceilings_from_being_opened(lab: Lab, broker: Broker) -> None:
    broker.configuration = CONFIGURATION.replace(
        "[class.storage]", '[class.storage]\nguarantee = "5 %"\nceiling = "10 %"'
    )
    with hindered(lab):
        broker.start()
        held = ceilings(broker)
        assert "ceil 1940Kbit" in held
        state = str(broker.folder / "state")
        broker.host.run([*WATCHDOG_ONCE, state])
        assert ceilings(broker) == held, "a broker works here: it decides"
        (watchdog,) = broker.watchdogs()
        os.kill(watchdog, signal.SIGSTOP)
        broker.end(signal.SIGKILL)
        broker.host.run([*WATCHDOG_ONCE, state])
        assert ceilings(broker) == held, "its watchdog is there yet, and would open them"
        os.kill(watchdog, signal.SIGKILL)
        wait_until(lambda: not broker.watchdogs())
        broker.host.run([*WATCHDOG_ONCE, state])
        assert "ceil 1940Kbit" not in ceilings(broker)
        broker.start()


def test_a_broker_with_files_and_pids_of_its_own_is_found_in_the_same_network(lab: Lab, broker: Broker) -> None:
    """As in a container that has the host's network, and a /run of its own."""
    broker.start()
    alone = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        'mount -t tmpfs none /run && exec "$@"',
        "-",
    ]
    (broker.folder / "other").mkdir()
    argv = [*COMMAND, "broker", "--config", str(broker.folder / "broker.toml")]
    second = broker.host.run(
        [*alone, *argv, "--runtime-dir", "/run/hive-qos", "--state-dir", str(broker.folder / "other/state")],
        check=False,
    )
    assert (second.returncode, second.stderr.count("\n")) == (5, 1), second.stderr
    assert "another broker (of another pid namespace, user 0) works in this network namespace" in second.stderr


def test_locks_of_a_daemon_can_be_opened_by_root_alone(broker: Broker) -> None:
    for name in ("run/session.sock.lock", "state/broker.lock"):
        (broker.folder / Path(name).parent).mkdir(exist_ok=True)
        (broker.folder / name).touch(mode=0o644)
    broker.start()
    for name in ("run/session.sock.lock", "state/broker.lock"):
        assert (broker.folder / name).stat().st_mode & 0o777 == 0o600


def test_a_claim_ends_with_its_last_holder(lab: Lab, broker: Broker) -> None:
    def claimed() -> int:
        with lab["a"].enter():
            return len(claims())

    assert claimed() == 0
    broker.start()
    assert claimed() == 1
    broker.end(signal.SIGTERM)
    wait_until(lambda: not broker.watchdogs())
    assert claimed() == 0
