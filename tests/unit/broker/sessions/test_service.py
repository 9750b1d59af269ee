"""What sessions may bring about: decisions out of turn, and measurements that count."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.enforce import cgroups
from broker.enforce.socket_marks import SocketMarks
from broker.events.log import open_log
from broker.measure.flow_table import FlowTable, PassedSocket
from broker.model.connection_report import ConnectionReport, Endpoint
from broker.process.rights import Authority, Peer
from broker.sessions.burst_table import BurstTable
from broker.sessions.job_table import JobTable
from broker.sessions.messages import (
    Announce,
    AnnounceEnd,
    Declare,
    Enter,
    ErrorReply,
    Noted,
    Register,
    Registered,
    Reply,
    Report,
)
from broker.sessions.need_table import NeedTable
from broker.sessions.program_table import ProgramTable
from broker.sessions.service import (
    DESTINATIONS_AT_ONCE,
    MOVES_AT_ONCE,
    URGENT_AT_ONCE,
    URGENT_PER_S,
    USERS_MAX,
    SessionService,
)
from broker.sessions.session import Session
from shaping.model.names import BULK_NAME, JOB_MINOR, LEAF_MINOR, MARK_MINOR

AUTHORITY = Authority(
    group=None, admin_group=None, uids=frozenset({1000, 1001}), class_uids=frozenset({("compute", 1001)}), notes=()
)


def burst_of(
    step: int, *, job: str = "j", towards: dict[str, int] | None = None, number: int | None = None
) -> Announce:
    return Announce(
        number=number, job=job, step=step, bytes_by_destination=towards or {"10.0.0.2": 5}, deadline_s=60.0
    )  # fmt: skip


def need(towards: dict[str, int] | None = None, *, replicas: int = 0) -> Declare:
    return Declare(
        number=1, backlog_bytes=500, deadline_s=10.0, replicas_at_risk=replicas, bytes_by_destination=towards or {}
    )  # fmt: skip


@dataclass
class Someone:
    """A session, as far as the service looks at one."""

    name: str
    uid: int = 1000
    job: str = "j"
    sent: list[Any] = field(default_factory=list)
    ended: bool = False

    @property
    def peer(self) -> Peer:
        return Peer(pid=1, uid=self.uid, groups=frozenset())

    def has_ended(self) -> bool:
        return self.ended

    def send(self, message: Any) -> bool:
        self.sent.append(message)
        return True


@dataclass
class Bench:
    """A service with a clock that stands still until it is moved."""

    now_s: float = 0.0
    flows: FlowTable = field(default_factory=FlowTable)
    jobs: JobTable = field(default_factory=lambda: JobTable(2))
    needs: NeedTable = field(default_factory=NeedTable)
    programs: ProgramTable = field(default_factory=lambda: ProgramTable(now_s=0.0))
    steps: Iterator[int] = field(default_factory=itertools.count)
    authority: Authority = AUTHORITY
    marks: list[int] = field(default_factory=list)
    settled: int = 0

    def __post_init__(self) -> None:
        marks = SocketMarks(self.mark)
        self.service = SessionService(
            flows=self.flows, bursts=BurstTable(), jobs=self.jobs, needs=self.needs,
            programs=self.programs, allowance=lambda: (20, 100), clock=lambda: self.now_s,
            interface_of=lambda _: "eth0", cgroup_mount="/mount", mark=marks.mark_passed, is_foreign=marks.is_foreign,
            authority=lambda: self.authority, reclassify=lambda: None, settle=self.settle,
            log=open_log(),
        )  # fmt: skip

    def mark(self, sock: socket.socket, *, minor: int, dscp: int | None) -> None:
        self.marks.append(minor)

    def settle(self) -> None:
        self.settled += 1

    def register(self, someone: Someone, *, traffic_class: str = "compute", role: str = "gradient") -> int:
        """Pass one socket; gives the minor that it was marked with."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            reply = self.service.register(
                cast(Session, someone), Register(number=1, traffic_class=traffic_class, role=role), [sock]
            )
        assert isinstance(reply, Registered), reply
        return self.marks[-1]

    def announce(self, someone: Someone, *, job: str = "j") -> bool:
        """Announce a new step; whether that asks for a decision now, which is then made."""
        burst = burst_of(next(self.steps), job=job)
        self.service.announce(cast(Session, someone), burst)
        return self.decided()

    def decided(self) -> bool:
        urgent = self.service.urgent
        self.service.urgent = False
        return urgent


def test_a_socket_whose_leaf_could_not_be_taken_back_gets_the_leaf_of_its_class() -> None:
    bench = Bench()
    marks = SocketMarks(bench.mark)
    for protocol in (socket.IPPROTO_UDP, socket.IPPROTO_TCP, socket.IPPROTO_UDPLITE, socket.IPPROTO_MPTCP):
        passed = cast(socket.socket, SimpleNamespace(getsockopt=lambda *_, proto=protocol: proto))
        marks.mark_passed(passed, traffic_class="compute", role="gradient", slot=0)
    assert bench.marks == [JOB_MINOR[0], JOB_MINOR[0], LEAF_MINOR["compute"], LEAF_MINOR["compute"]]


def test_one_user_brings_about_so_many_decisions_out_of_turn_whatever_he_opens_and_others_still_theirs() -> None:
    bench = Bench()
    urgent = sum(bench.announce(Someone(f"s-{number}")) for number in range(50))
    assert urgent == URGENT_AT_ONCE
    assert bench.announce(Someone("s-99", uid=1001))
    bench.now_s += 10 / URGENT_PER_S
    assert sum(bench.announce(Someone("s-1")) for _ in range(50)) == URGENT_AT_ONCE
    bench.now_s += 1.5 / URGENT_PER_S
    assert bench.announce(Someone("s-1"))
    assert not bench.announce(Someone("s-1"))


def test_ranks_that_announce_together_cost_one_decision() -> None:
    bench = Bench()
    for number in range(40):
        burst = burst_of(1)
        bench.service.announce(cast(Session, Someone(f"s-{number}")), burst)
    assert bench.decided()
    assert sum(bench.announce(Someone("s-1")) for _ in range(9)) == URGENT_AT_ONCE - 1


def test_the_allowances_of_many_users_stay_bounded() -> None:
    bench = Bench()
    for uid in range(3 * USERS_MAX):
        bench.announce(Someone("s-1", uid=uid))
    assert len(bench.service._soon) == USERS_MAX


def test_the_end_of_a_session_or_a_step_is_urgent_only_when_a_burst_ends_with_it() -> None:
    bench, someone = Bench(), Someone("s-1")
    bench.service.gone(cast(Session, someone))
    bench.service.announce_end(cast(Session, someone), AnnounceEnd(job="j", step=5))
    assert not bench.decided()
    bench.announce(someone)
    bench.service.gone(cast(Session, someone))
    assert bench.decided()


def test_an_announcement_for_another_job_than_that_of_the_hello_is_refused() -> None:
    bench, someone = Bench(), Someone("s-1")
    assert not bench.announce(someone, job="k")
    assert [reply.code for reply in someone.sent] == ["bad-field"]


@pytest.mark.parametrize(
    ("registered", "reported", "seen"),
    [
        ((), "compute", None),
        (("storage",), "compute", "storage"),
        (("compute", "storage"), "compute", "compute"),
        (("compute", "storage"), "control", "storage"),
    ],
)
def test_reports_count_for_classes_in_which_the_session_has_sockets(
    registered: tuple[str, ...], reported: str, seen: str | None
) -> None:
    bench = Bench()
    for number, name in enumerate(registered):
        bench.flows.add(
            PassedSocket(f"f-{number}", "s-1", "j", name, "bulk", "udp", "10.0.0.1:1", 1, 1000, number), registration=1
        )
    connection = ConnectionReport(peer=Endpoint("10.0.0.2", 1), traffic_class=reported, rtt_s=0.01)
    bench.service.report(cast(Session, Someone("s-1")), Report(connections=(connection,)))
    samples = bench.flows.samples(interface_of=lambda _: "eth0", now_s=0.0).get("eth0", ())
    assert [sample.traffic_class for sample in samples] == ([] if seen is None else [seen])


@pytest.mark.parametrize(
    ("someone", "traffic_class", "limits", "code"),
    [
        (Someone("s-1"), "storage", (), None),
        (Someone("s-1"), "compute", (), "not-allowed"),
        (Someone("s-1", uid=1001), "compute", (), None),
        (Someone("s-1", uid=1002), "storage", (), "not-allowed"),
        (Someone("s-1"), "storage", ("memory.max = 1 (/x)",), "limited"),
        (Someone("s-1", uid=0), "control", ("memory.max = 1 (/x)",), "limited"),  # it may be a container's root
        (Someone("s-1", uid=0), "control", (), None),
        (Someone("s-1", ended=True), "storage", (), "no-process"),
    ],
)
def test_a_program_is_moved_only_where_policy_and_its_limits_let_it_and_while_it_lives(
    monkeypatch: pytest.MonkeyPatch, someone: Someone, traffic_class: str, limits: tuple[str, ...], code: str | None
) -> None:
    moved: list[tuple[str, int]] = []

    def enter(mount: str, *, traffic_class: str, pid: int) -> bool:
        moved.append((traffic_class, pid))
        return False

    monkeypatch.setattr(cgroups, "enter", enter)
    monkeypatch.setattr(cgroups, "left_behind", lambda mount, *, pid, traffic_class: limits)
    reply = Bench().service.enter(cast(Session, someone), Enter(number=1, traffic_class=traffic_class))
    assert getattr(reply, "code", None) == code
    assert moved == ([(traffic_class, 1)] if code is None else [])


def test_a_user_has_only_so_many_processes_moved_and_takes_no_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move takes the loop some 10 ms."""
    monkeypatch.setattr(cgroups, "enter", lambda mount, *, traffic_class, pid: False)
    monkeypatch.setattr(cgroups, "left_behind", lambda mount, *, pid, traffic_class: ())
    bench = Bench()

    def moved(someone: Someone, times: int) -> list[str | None]:
        message = Enter(number=1, traffic_class="storage")
        return [getattr(bench.service.enter(cast(Session, someone), message), "code", None) for _ in range(times)]

    said = moved(Someone("s-1"), 100)
    assert said == [None] * int(MOVES_AT_ONCE) + ["too-many"] * (100 - int(MOVES_AT_ONCE))
    assert moved(Someone("s-2", uid=0), 1) == [None]


def test_sockets_of_a_job_go_to_its_leaf_and_bulk_nameless_and_late_ones_to_those_of_the_class() -> None:
    bench = Bench()
    assert bench.register(Someone("s-1")) == bench.register(Someone("s-2")) == JOB_MINOR[0]
    assert bench.register(Someone("s-1"), role="bulk") == LEAF_MINOR[BULK_NAME]
    assert bench.register(Someone("s-3", job="")) == LEAF_MINOR["compute"]
    assert bench.register(Someone("s-4", uid=1001)) == JOB_MINOR[1], "the same name, but another user's job"
    assert bench.register(Someone("s-5", uid=1002, job="l")) == LEAF_MINOR["compute"]
    assert bench.register(Someone("s-1"), traffic_class="storage", role="storage") == MARK_MINOR["storage"]
    for name in ("s-1", "s-2"):
        bench.service.gone(cast(Session, Someone(name)))
    assert bench.register(Someone("s-5", uid=1002, job="l")) == JOB_MINOR[0]


def test_a_new_jobs_leaf_is_settled_once_and_not_more_often_than_a_user_may_bring_about_decisions() -> None:
    bench = Bench(jobs=JobTable(len(JOB_MINOR)))
    bench.register(Someone("s-1"))
    bench.register(Someone("s-1"))
    bench.register(Someone("s-2"))
    assert bench.settled == 1
    bench.register(Someone("s-3", uid=1001))
    assert bench.settled == 2, "another user's job of that name is a new one"
    for number in range(20):
        bench.register(Someone(f"s-{number}", job=f"j-{number}"))
        bench.jobs.forget(f"s-{number}")
    assert bench.settled == 1 + URGENT_AT_ONCE


@pytest.mark.parametrize(("uid", "answer"), [(1000, Noted), (1002, ErrorReply)])
def test_a_need_is_taken_from_whoever_may_use_storage_and_data_at_risk_is_decided_on_at_once(
    uid: int, answer: type[Reply]
) -> None:
    bench, someone = Bench(), cast(Session, Someone("s-1", uid=uid))
    assert isinstance(bench.service.need(someone, need()), answer)
    assert not bench.decided()
    assert isinstance(bench.service.need(someone, need(replicas=3)), answer)
    assert bench.decided() is (answer is Noted)
    (needs,) = bench.needs.current(now_s=4.0).values() or ((),)
    assert [(need.uid, need.remaining_s, need.replicas_at_risk) for need in needs] == (
        [(1000, 6.0, 3)] if answer is Noted else []
    )
    bench.service.gone(someone)
    assert bench.needs.current(now_s=4.0) == {}


def test_one_user_names_so_many_destinations_a_second_and_others_still_theirs() -> None:
    bench, someone, other = Bench(), Someone("s-1"), Someone("s-2", uid=1001)
    crowd = {f"10.0.{number // 250}.{number % 250}": 5 for number in range(1000)}
    for _ in range(10):
        bench.service.announce(cast(Session, someone), burst_of(next(bench.steps), towards=crowd, number=1))
    refused = [reply for reply in someone.sent if isinstance(reply, ErrorReply)]
    assert len(refused) == 10 - DESTINATIONS_AT_ONCE / 1000
    assert refused[0].code == "too-many"
    reply = bench.service.need(cast(Session, someone), need(crowd))
    assert getattr(reply, "code", None) == "too-many"
    assert isinstance(bench.service.need(cast(Session, other), need(crowd)), Noted)
    bench.now_s += 1.0
    assert isinstance(bench.service.need(cast(Session, someone), need(crowd)), Noted)
