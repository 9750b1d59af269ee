"""A burst that others were asked for at once is seen by a decision, whatever its program does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from broker.law.bursts.announced import BURSTS_PER_USER_MAX
from broker.law.bursts.inbound import NEW_S
from broker.measure.flow_table import FlowTable
from broker.model.reasons import Reason
from broker.model.values import Credit
from broker.process.log import open_log
from broker.process.rights import Authority, Peer
from broker.sessions.burst_table import BurstTable
from broker.sessions.job_table import JobTable
from broker.sessions.messages import Announce, AnnounceEnd
from broker.sessions.need_table import NeedTable
from broker.sessions.server import Session
from broker.sessions.service import URGENT_AT_ONCE, SessionService

AUTHORITY = Authority(group=None, admin_group=None, uids=frozenset(), class_uids=frozenset(), notes=())


@dataclass
class Rank:
    """A session, as far as the hub looks at one."""

    name: str = "s-1"
    job: str = "j"
    sent: list[Any] = field(default_factory=list)

    @property
    def peer(self) -> Peer:
        return Peer(pid=1, uid=1000, gid=1000, groups=frozenset())

    def send(self, message: Any) -> bool:
        self.sent.append(message)
        return True


class Bench:
    """A hub whose every burst is ready to be asked for."""

    def __init__(self) -> None:
        self.bursts, self.asked = BurstTable(), list[tuple[int, str, Mapping[str, int]]]()
        self.failed: list[Any] = []
        self.hub = SessionService(
            flows=FlowTable(), bursts=self.bursts, jobs=JobTable(2), needs=NeedTable(), clock=lambda: 5.0,
            interface_of=lambda _: "eth0", cgroup_mount=None, mark=lambda *_, **__: None, authority=lambda: AUTHORITY,
            reclassify=lambda: None, settle=lambda: None, fail=self.failed.append, log=open_log(), ask_ahead=self.ask,
        )  # fmt: skip

    def ask(self, uid: int, job: str, size_bytes: Mapping[str, int]) -> bool:
        self.asked.append((uid, job, size_bytes))
        return True

    def announce(self, rank: Rank, step: int, *, size_bytes: int = 10**6, deadline_s: float = 60.0) -> None:
        message = Announce(None, rank.job, step, {"10.0.0.2": size_bytes}, deadline_s, None)
        self.hub.announce(cast(Session, rank), message)

    def end(self, rank: Rank, step: int) -> None:
        self.hub.announce_end(cast(Session, rank), AnnounceEnd(rank.job, step))

    def under_way(self) -> set[int]:
        return {burst.step for burst in self.bursts.current(now_s=5.0).get("eth0", ())}

    def decide(self) -> None:
        self.hub.answer((), {})


def test_the_first_announcement_of_a_step_asks_and_what_comes_with_it_does_not() -> None:
    bench = Bench()
    bench.announce(Rank(), 1)
    bench.announce(Rank("s-2"), 1)
    assert bench.asked == [(1000, "j", {"eth0": 10**6})]


def test_a_user_who_has_had_his_decisions_asks_for_nothing() -> None:
    bench, rank = Bench(), Rank()
    for step in range(20):
        bench.announce(rank, step)
        bench.decide()
        bench.end(rank, step)
        bench.decide()
    assert 1 <= len(bench.asked) <= URGENT_AT_ONCE


def test_a_burst_that_is_taken_back_is_seen_by_a_decision_first() -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    bench.end(rank, 1)
    assert bench.under_way() == {1}
    bench.decide()
    assert bench.under_way() == set()
    assert bench.hub.urgent, "that it is over is worth a decision, too"


def test_one_that_is_said_again_with_no_time_left_is_seen_as_new_as_it_is() -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    bench.announce(rank, 1, deadline_s=0.0)
    (burst,) = bench.bursts.current(now_s=5.001)["eth0"]
    assert burst.remaining_s < 0
    assert burst.age_s < NEW_S, "so the way in follows and judges it"


def test_so_is_one_whose_session_ends() -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    bench.hub.gone(cast(Session, rank))
    assert bench.under_way() == {1}
    bench.decide()
    assert bench.under_way() == set()


def test_what_comes_after_an_end_that_waits_waits_with_it() -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    bench.end(rank, 1)
    bench.announce(rank, 2)
    bench.announce(rank, 1, size_bytes=5)
    assert bench.under_way() == {1}
    bench.decide()
    while bench.hub.urgent:
        assert 1 in bench.under_way()
        bench.decide()
    assert {burst.step: burst.announced_bytes for burst in bench.bursts.current(now_s=5.0)["eth0"]} == {2: 10**6, 1: 5}


@pytest.mark.parametrize("leaves", [False, True])
def test_an_end_that_waited_is_decided_on_at_the_next_tick(leaves: bool) -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    if leaves:
        bench.hub.gone(cast(Session, rank))
    else:
        bench.end(rank, 1)
    bench.decide()
    assert bench.hub.changed
    bench.decide()
    assert not bench.hub.changed


def test_what_waited_and_cannot_be_done_ends_its_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, one, other = Bench(), Rank(), Rank("s-2")
    bench.announce(one, 1)
    bench.announce(other, 1)
    bench.end(one, 1)
    bench.end(other, 1)
    bench.announce(other, 2)
    end = bench.bursts.end

    def fails(session: str, *, job: str, step: int) -> bool:
        if session == one.name:
            raise RuntimeError("a mistake")
        return end(session, job=job, step=step)

    monkeypatch.setattr(bench.bursts, "end", fails)
    bench.decide()
    assert bench.failed == [one]
    bench.hub.gone(cast(Session, one))  # as the end of a session does
    assert bench.hub.changed
    bench.decide()
    assert bench.under_way() == {2}


def test_so_is_one_before_many_others_of_its_user() -> None:
    bench, ranks = Bench(), [Rank(f"s-{number}") for number in range(20)]
    bench.announce(ranks[0], 1000)
    for number in range(200):
        bench.announce(ranks[number % 20], number)
    assert 1000 in bench.under_way()
    assert len(bench.under_way()) == BURSTS_PER_USER_MAX, "no more than a decision looks at"
    bench.decide()
    assert len(bench.under_way()) > BURSTS_PER_USER_MAX


def test_who_waited_is_answered_by_the_decision_that_has_seen_his_burst() -> None:
    bench, rank = Bench(), Rank()
    bench.announce(rank, 1)
    bench.end(rank, 1)
    bench.hub.announce(cast(Session, rank), Announce(7, "j", 2, {"10.0.0.2": 10**6}, 60.0, None))
    sessions = {rank.name: cast(Session, rank)}
    bench.hub.answer((), sessions)
    assert rank.sent == []
    bench.hub.answer((Credit("eth0", "j", 2, 5, 1000, Reason("", "")),), sessions)
    assert rank.sent == [{"op": "credited", "id": 7, "bytes": 5}]


@pytest.mark.parametrize("others", [1, 5])
def test_who_has_other_bursts_under_way_is_not_asked_for_ahead(others: int) -> None:
    bench, rank = Bench(), Rank()
    bench.hub.urgent = True  # somebody else's: nothing is taken from this user
    for step in range(others):
        bench.announce(rank, step)
        bench.decide()
    asked = len(bench.asked)
    bench.announce(rank, 77)
    assert len(bench.asked) == asked
