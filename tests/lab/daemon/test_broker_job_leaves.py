"""Jobs inside compute, in the kernel, by leaf and weight, with a promise, while storage floods too; and a call."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_host import CONFIGURATION, Broker, broker_in, two_hosts
from patience import most_of, wait_until

from shaping.model.names import INNER_MINOR, JOB_MINOR, LEAF_MINOR
from tools.lab import Lab

ROOT = Path(__file__).parents[3]
POLICY = (
    CONFIGURATION
    + """
[job.heavy]
weight = 2
[job."sure-*"]
guarantee = "40 %"
[job.mine]
guarantee = "40 %"
uid = 0
[[schedule]]
name = "always"
from = "00:00"
to = "24:00"
timezone = "UTC"
class.storage = { ceiling = "90 %" }
"""
)
USER = "nobody"
CAPACITY = 0.97 * 20e6
WINDOW_S = 2.0
FLOOD = """
import socket, sys, time
from broker.client import Session
address, traffic_class, job, path = sys.argv[1:]
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with Session(job=job, socket_path=path) as session:
    session.register(sock, traffic_class=traffic_class, role="storage" if traffic_class == "storage" else "gradient")
    until = time.monotonic() + 30
    while not session.flows and time.monotonic() < until:
        time.sleep(0.01)
    assert session.flows, (session.state, session.rejections)
    while True:
        sock.sendto(bytes(1200), (address, 4001))
"""

KEEP = """
import socket, sys, time
from broker.client import Session
address, path, jobs = sys.argv[1:]
kept = []
for job in range(int(jobs)):
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with Session(job=f"ended-{job}", socket_path=path) as session:
        session.register(kept[-1], traffic_class="compute", role="gradient")
        until = time.monotonic() + 30
        while not session.flows and time.monotonic() < until:
            time.sleep(0.01)
        assert session.flows, (session.state, session.rejections)
print(flush=True)
sys.stdin.readline()
while True:
    for sock in kept:
        sock.sendto(bytes(1200), (address, 4001))
"""
IDLE = """
import socket, sys, time
from broker.client import Session
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with Session(job=sys.argv[1], socket_path=sys.argv[2]) as session:
    session.register(sock, traffic_class="compute", role="gradient")
    while True:
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("jobs") as lab:
        yield lab


@pytest.fixture(scope="module")
def broker(lab: Lab) -> Iterator[Broker]:
    """One beside which storage floods."""
    with broker_in(lab["a"], configuration=POLICY) as broker:
        broker.folder.chmod(0o755)  # programs of another user reach its sockets
        broker.start()
        with flooding(lab, broker, "backup", traffic_class="storage"):
            yield broker


@contextmanager
def flooding(
    lab: Lab, broker: Broker, *jobs: str, traffic_class: str = "compute", users: tuple[str | None, ...] = (None,)
) -> Iterator[None]:
    """Programs, one a job and user (None: root), that send the other host as much as the kernel takes."""
    argv = [sys.executable, "-c", FLOOD, lab["b"].address, traffic_class]
    programs: list[subprocess.Popen[bytes]] = []
    try:
        for user, job in itertools.product(users, jobs):
            programs.append(broker.host.popen([*argv, job, broker.sessions], user=user, cwd=ROOT))
        yield
        assert all(program.poll() is None for program in programs)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    wait_until(lambda: not {*jobs} & {entry["job"] for entry in broker.status()["jobs"]}, what=broker.status)


def sent_bytes(broker: Broker) -> dict[int, int]:
    """What each leaf of the kernel has sent, by its minor."""
    text = broker.host.run(["tc", "-s", "class", "show", "dev", "eth0"]).stdout
    return {int(minor, 16): int(sent) for minor, sent in re.findall(r"htb ffe0:(\w+) .*?Sent (\d+) bytes", text, re.S)}


def rates(broker: Broker) -> dict[int, float]:
    """Bits per second of each leaf over a window."""
    began_s, before = time.monotonic(), sent_bytes(broker)
    time.sleep(WINDOW_S)
    after, ended_s = sent_bytes(broker), time.monotonic()
    return {minor: 8 * (after[minor] - before[minor]) / (ended_s - began_s) for minor in after}


def shares(broker: Broker) -> dict[str, dict[str, Any]]:
    """What the broker says of each job."""
    return {job["job"]: {**job, **job["shares"][0]} for job in broker.status()["jobs"] if job["shares"]}


def leaves(broker: Broker, *jobs: str) -> list[int]:
    """The minors of the leaves of jobs that are waiting for more, as soon as all of them are."""

    def found() -> list[int]:
        waiting = {job: shown["leaf"] for job, shown in shares(broker).items() if shown["backlog_bytes"]}
        return [int(waiting[job].removeprefix("ffe0:"), 16) for job in jobs if job in waiting]

    wait_until(lambda: len(found()) == len(jobs), what=broker.status)
    return found()


def test_two_jobs_divide_what_training_gets_equally_while_storage_floods(lab: Lab, broker: Broker) -> None:
    with flooding(lab, broker, "one", "two"):
        one, two = leaves(broker, "one", "two")

        def good(sent: dict[int, float]) -> bool:
            jain = (sent[one] + sent[two]) ** 2 / (2 * (sent[one] ** 2 + sent[two] ** 2))
            used = sent[one] + sent[two] + sent[LEAF_MINOR["storage"]]
            return jain >= 0.999 and sent[one] + sent[two] >= 0.6 * CAPACITY and used >= 0.95 * CAPACITY

        most_of(lambda: rates(broker), good)
        assert [shares(broker)[job]["reason"]["code"] for job in ("one", "two")] == 2 * ["shares-its-class"]


def test_a_job_of_twice_the_weight_gets_twice_as_much(lab: Lab, broker: Broker) -> None:
    with flooding(lab, broker, "heavy", "light"):
        heavy, light = leaves(broker, "heavy", "light")
        most_of(lambda: rates(broker), lambda sent: abs(sent[heavy] / sent[light] - 2.0) < 0.06)


def test_a_job_that_is_promised_a_part_gets_it_against_jobs_of_more_weight(lab: Lab, broker: Broker) -> None:
    with flooding(lab, broker, "sure-7", "heavy", "light"):
        sure, _, light = leaves(broker, "sure-7", "heavy", "light")
        most_of(
            lambda: rates(broker), lambda sent: sent[sure] >= 0.98 * 0.4 * CAPACITY and sent[light] >= 0.03 * CAPACITY
        )


def test_another_user_who_takes_a_jobs_name_gets_neither_into_its_leaf_nor_at_its_promise(
    lab: Lab, broker: Broker
) -> None:
    with flooding(lab, broker, "heavy", "light"), flooding(lab, broker, "mine", users=(None, USER)):

        def found() -> dict[bool, int]:
            named = [job for job in broker.status()["jobs"] if job["job"] == "mine" and job["shares"]]
            waiting = [job for job in named if job["leaf"] and job["shares"][0]["backlog_bytes"]]
            return {job["uid"] == 0: int(job["leaf"].removeprefix("ffe0:"), 16) for job in waiting}

        wait_until(lambda: len(found()) == 2, what=broker.status)
        owner, other = found()[True], found()[False]
        assert owner != other
        most_of(
            lambda: rates(broker),
            lambda sent: sent[owner] >= 0.98 * 0.4 * CAPACITY and 0.1 * CAPACITY <= sent[other] <= 0.35 * CAPACITY,
        )


def test_six_names_of_one_user_take_no_more_than_about_half_from_one_job_of_another(lab: Lab, broker: Broker) -> None:
    """Those of them that find no leaf share the class' own, which counts as one user more: alone 0.41 to 0.43 are left.
    Where the senders want for a processor it was 0.32; shared by names it would be a seventh."""
    names = [f"name-{number}" for number in range(6)]
    with flooding(lab, broker, *names, users=(USER,)):
        wait_until(lambda: len([job for job in broker.status()["jobs"] if job["leaf"]]) >= 4, what=broker.status)
        with flooding(lab, broker, "train"):
            (train,) = leaves(broker, "train")

            def good(sent: dict[int, float]) -> bool:
                compute = sent[INNER_MINOR["compute"]]
                return compute >= 0.6 * CAPACITY and sent[train] >= 0.28 * compute

            most_of(lambda: rates(broker), good)


def test_sockets_that_outlive_their_jobs_do_not_send_through_the_leaf_of_a_later_job(lab: Lab, broker: Broker) -> None:
    keep = [sys.executable, "-c", KEEP, lab["b"].address, broker.sessions, str(len(JOB_MINOR))]
    idle = [sys.executable, "-c", IDLE, "later", broker.sessions]
    with broker.host.popen(keep, user=USER, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdout.readline()  # each leaf that this user may have was one of these jobs'
        with broker.host.popen(idle, user=USER, cwd=ROOT) as owner:
            try:
                shown = wait_until(
                    lambda: [job for job in broker.status()["jobs"] if job["job"] == "later" and job["leaf"]],
                    what=broker.status,
                )
                leaf = int(shown[0]["leaf"].removeprefix("ffe0:"), 16)
                keeper.stdin.write(b"\n")
                keeper.stdin.flush()

                def apart() -> bool:
                    sent = rates(broker)
                    return sent[INNER_MINOR["compute"]] >= 0.5 * CAPACITY and sent[leaf] == 0.0

                wait_until(apart, what=lambda: (hex(leaf), sent_bytes(broker), broker.log))
            finally:
                keeper.kill()
                owner.kill()


def test_storage_has_the_ceiling_of_a_schedule_that_holds(broker: Broker) -> None:
    def storage() -> tuple[float, str]:
        entry = next(one for one in broker.status()["interfaces"][0]["classes"] if one["name"] == "storage")
        return entry["ceil_bits_per_s"] / CAPACITY, entry["reason"]["code"]

    assert [(entry["name"], entry["until"]) for entry in broker.status()["schedules"]] == [("always", None)]
    wait_until(lambda: storage() == (pytest.approx(0.9, abs=0.02), "held-by-schedule"), what=storage)
