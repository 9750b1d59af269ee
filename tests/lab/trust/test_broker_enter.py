"""`hive-qos run` frees nobody of what holds him in his cgroup. The filters here are real ones of the kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts

from shaping.classify import bpf, cgroup
from shaping.classify.bpf import instruction
from tools.lab import Lab

USER = "nobody"
ALLOW = instruction(0xB7, dst=0, immediate=1) + instruction(0x95)
DEVICE, EGRESS = (15, 6), (8, 1)
"""BPF_PROG_TYPE_CGROUP_DEVICE and _SKB of linux/bpf.h, each with what it is attached as."""
SHOW = ["sh", "-c", "grep ^0:: /proc/self/cgroup"]
CONTAINER = """
mount -t cgroup2 -o ro none /mnt && umount -l "$1" && shift && exec "$@"
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("enter") as lab:
        yield lab


@contextmanager
def open_broker(lab: Lab, **options: str) -> Iterator[Broker]:
    """One that ordinary users reach."""
    with broker_in(lab["a"], **options) as broker:
        broker.folder.chmod(0o755)
        broker.start()
        yield broker


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    with open_broker(lab) as broker:
        yield broker


@pytest.fixture
def place() -> Iterator[Path]:
    """A cgroup, and one below it."""
    top = cgroup.mount() / f"hqenter-{os.getpid()}"
    (top / "scope").mkdir(parents=True)
    yield top
    (top / "scope").rmdir()
    top.rmdir()


@contextmanager
def filtered(path: Path, kind: tuple[int, int]) -> Iterator[None]:
    """A program at a cgroup that lets everything pass, as a service manager or a container runtime puts there."""
    program_type, attach_type = kind
    program = bpf.load_program(
        program_type=program_type, attach_type=attach_type, instructions=ALLOW, name="somebodys_filter"[:15]
    )
    group = os.open(path, os.O_RDONLY)
    bpf.attach(cgroup=group, program=program, attach_type=attach_type)
    try:
        yield
    finally:
        bpf.detach(cgroup=group, program=program, attach_type=attach_type)
        os.close(group)
        os.close(program)


def run_in(broker: Broker, path: Path, *before: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    """`hive-qos run` of a program that says where it is, by a process that is in a cgroup."""
    run = [*COMMAND, "run", "--class", "storage", "--socket", broker.sessions, "--", *SHOW]
    become = ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"] if user else []
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(path)]
    return broker.host.run([*enter, *before, *become, *run], check=False)


@pytest.mark.parametrize("kind", [DEVICE, EGRESS])
@pytest.mark.parametrize("above", [False, True])
def test_a_process_below_a_filter_stays_there(broker: Broker, place: Path, kind: tuple[int, int], above: bool) -> None:
    with filtered(place if above else place / "scope", kind):
        refused = run_in(broker, place / "scope", user=USER)
    assert (refused.returncode, refused.stdout) == (5, ""), refused
    assert f"BPF program somebodys_filte ({bpf.CGROUP_ATTACH_TYPES[kind[1]]})" in refused.stderr
    assert f"(/{place.name}{'' if above else '/scope'})" in refused.stderr


def test_a_process_that_nothing_holds_is_moved_whatever_the_broker_itself_put_there(lab: Lab, place: Path) -> None:
    rule = f'[class.compute]\nmatch = [{{ cgroup = "{place.name}" }}]\n[daemon]'
    with open_broker(lab, configuration=CONFIGURATION.replace("[daemon]", rule)) as broker:
        moved = run_in(broker, place / "scope", user=USER)
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout.rstrip().endswith("/storage")


def test_root_of_a_container_keeps_its_filter_of_devices_and_the_hosts_root_moves_itself(
    broker: Broker, place: Path
) -> None:
    unshared = ("unshare", "--mount", "--cgroup", "--pid", "--fork", "--mount-proc")
    container = (*unshared, "sh", "-c", CONTAINER, "-", str(cgroup.mount()))
    with filtered(place, DEVICE):
        refused = run_in(broker, place / "scope", *container)
        moved = run_in(broker, place / "scope")
    assert (refused.returncode, refused.stdout) == (5, ""), refused
    assert "(device)" in refused.stderr
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout.rstrip().endswith("/storage")
