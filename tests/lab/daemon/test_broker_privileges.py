"""With the capabilities of the installed service, and no other: what works, and which process has which."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_host import COMMAND, SEND_TCP, Broker, broker_in, two_hosts
from patience import wait_until
from test_broker_earlier_sockets import PORT, RULES, SINK, program, sends

from broker.process.socket_finder_client import SYS_PTRACE
from shaping.classify import cgroup
from tools.lab import Lab

SERVICE = Path(__file__).parents[3] / "systemd/hive-qos.service"
PAYLOAD_BYTES = 200_000


def of_the_service(*without: str) -> tuple[str, ...]:
    """What gives a program the service's capabilities, and keeps it from others, as NoNewPrivileges= and
    CapabilityBoundingSet= do; and the group of the tests' brokers."""
    found = re.search(r"^CapabilityBoundingSet=(.*)$", SERVICE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    kept = [name.removeprefix("CAP_").lower() for name in found[1].split() if name not in without]
    bounds = ",".join(["-all", *(f"+{one}" for one in kept)])
    return ("setpriv", "--no-new-privs", "--groups=nogroup", "--inh-caps=-all", "--bounding-set", bounds)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("privileges") as lab:
        sink = lab["b"].popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        sink.stdout.close()
        yield lab


@pytest.fixture
def group(lab: Lab) -> Iterator[Path]:
    """A cgroup of a rule; and that of the service's ExecStartPre=."""
    rule = cgroup.mount() / f"hqprivileges-{os.getpid()}"
    ours = cgroup.mount() / f"hive-qos-{lab['a'].namespace_path.stat().st_ino}"
    rule.mkdir()
    ours.mkdir()
    yield rule
    rule.rmdir()
    for directory in (*ours.glob("*/"), ours):  # of one that was killed
        if directory.exists():
            directory.rmdir()


@contextmanager
def broker_as(lab: Lab, *before: str, group: Path) -> Iterator[Broker]:
    with broker_in(lab["a"], configuration=RULES % group.name, before=before) as broker:
        broker.start()
        yield broker


def capabilities_of(pid: int) -> set[int]:
    """Those that any thread of a process has, or could get."""
    found = 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            match = re.search(rf"^{kind}:\s*(\w+)$", path.read_text(), re.MULTILINE)
            assert match is not None
            found |= int(match[1], 16)
    return {number for number in range(64) if found >> number & 1}


def finders(broker: Broker) -> list[int]:
    """Its finder, by its parent."""
    assert broker.process is not None
    children = Path(f"/proc/{broker.process.pid}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    return [pid for pid in pids if b"broker.process.socket_finder" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("before", [(), of_the_service()])
def test_the_daemon_cannot_look_into_processes_and_its_finder_can_and_ends_with_it(
    lab: Lab, group: Path, before: tuple[str, ...]
) -> None:
    with broker_as(lab, *before, group=group) as broker:
        assert broker.process is not None
        (finder,) = finders(broker)
        assert SYS_PTRACE not in capabilities_of(broker.process.pid)
        assert SYS_PTRACE in capabilities_of(finder)
        broker.end(signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{finder}").exists())
        wait_until(lambda: not broker.watchdogs())


def test_sockets_of_before_are_found_with_what_the_service_has(lab: Lab, group: Path) -> None:
    with program(lab["a"], group=group) as service:
        service.do("connect", lab["b"].address, PORT)
        with broker_as(lab, *of_the_service(), group=group) as broker:
            wait_until(lambda: broker.status()["daemon"]["sockets_marked"] >= 1, what=lambda: broker.log)
            sends(broker, service, "storage")
            assert broker.status()["alarms"] == []


def test_without_the_right_to_look_into_processes_those_are_told_and_all_else_works(lab: Lab, group: Path) -> None:
    with program(lab["a"], group=group) as service:
        service.do("connect", lab["b"].address, PORT)
        with broker_as(lab, *of_the_service("CAP_SYS_PTRACE"), group=group) as broker:
            alarm = wait_until(lambda: broker.status()["alarms"], what=lambda: broker.log)[0]
            assert alarm["code"] == "sockets-not-classified"
            assert "CAP_SYS_PTRACE" in alarm["text"]
            assert "restart" in alarm["text"]
            service.do("connect", lab["b"].address, PORT)
            sends(broker, service, "storage")
            run = [*COMMAND, "run", "--class", "storage", "--socket", broker.sessions, "--"]
            before = broker.sent_bytes("storage")
            broker.host.run([*run, "python3", "-c", SEND_TCP, lab["b"].address, str(PAYLOAD_BYTES)])
            wait_until(lambda: broker.sent_bytes("storage") >= before + PAYLOAD_BYTES, what=broker.status)
