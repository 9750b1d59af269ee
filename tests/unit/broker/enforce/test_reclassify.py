"""The search for sockets from before their rule ends, and takes its share of a core, whatever cgroups do meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from broker.enforce import reclassify
from broker.enforce.reclassify import HASTENED_SHARE, HASTENED_SLICE_S, Reclassifier
from broker.events.log import open_log
from broker.measure.tcp_diag import OwnedSocket
from shaping.model.names import JOB_MINOR, LEAF_MINOR, classid
from shaping.model.shapes import Rule

RULE = Rule("storage", cgroup="service")
TICK_S = 0.1
DUPLICATE_S = 0.002


class Sweeping:
    """Passes over `pages` pages of no sockets, 1 ms each on a clock of its own; it looks for new cgroups each 0.5 s."""

    def __init__(self, mount: Path, *, pages: int) -> None:
        self.mount, self.pages = mount, pages
        self.cpu_s, self.now_s = 0.0, 0.0
        self.ticks = self.begun = self.ended = 0
        self.earlier = Reclassifier(
            mount=mount,
            mark=lambda *_, **__: None,
            remember=lambda *_: False,
            close=lambda *_, **__: None,
            log=open_log(),
            cpu_clock=lambda: self.cpu_s,
        )
        (mount / "service").mkdir()

    def sockets(self, protocol: int, **_: object) -> Iterator[list[object]]:
        if protocol != socket.IPPROTO_TCP:
            self.ended += 1
            return
        self.begun += 1
        for _page in range(self.pages):
            self.cpu_s += 0.001
            yield []

    def make_again(self) -> None:
        (self.mount / "again").mkdir()
        (self.mount / "again").rename(self.mount / "service")

    def tick(self, number: int = 1, *, urgent: bool = False) -> None:
        for _ in range(number):
            self.earlier.look(lambda: [RULE], classified=self.ticks % 5 == 0, now_s=self.now_s, urgent=urgent)
            self.ticks += 1
            self.now_s += TICK_S


@pytest.fixture
def sweeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sweeping:
    found = Sweeping(tmp_path, pages=request.param)
    monkeypatch.setattr(reclassify, "owned_sockets", found.sockets)
    return found


@pytest.mark.parametrize("sweeping", [10, 100, 2000], indirect=True)
def test_a_service_that_crashes_again_and_again_takes_its_share_and_no_more(sweeping: Sweeping) -> None:
    rounds = 800
    for _ in range(rounds):
        sweeping.tick(5)
        sweeping.make_again()
    assert sweeping.ended >= 3
    assert sweeping.cpu_s / sweeping.now_s <= 1.1 * HASTENED_SHARE


@pytest.mark.parametrize("sweeping", [100], indirect=True)
def test_a_pass_under_way_ends_and_one_more_sees_what_has_changed_meanwhile(sweeping: Sweeping) -> None:
    sweeping.tick(2)
    assert (sweeping.begun, sweeping.ended) == (1, 0)
    for _ in range(3):
        sweeping.make_again()
        sweeping.tick()
    sweeping.tick(3)
    assert (sweeping.begun, sweeping.ended) == (1, 1)
    sweeping.tick(round(0.1 / HASTENED_SHARE / TICK_S) + 6)  # 100 pages are 0.1 s
    assert (sweeping.begun, sweeping.ended) == (2, 2)


@pytest.mark.parametrize("sweeping", [100], indirect=True)
def test_a_tick_that_somebody_waits_for_does_no_slice(sweeping: Sweeping) -> None:
    sweeping.tick(100, urgent=True)
    assert sweeping.cpu_s == 0.0
    sweeping.tick()
    assert 0.0 < sweeping.cpu_s <= 1.1 * HASTENED_SLICE_S


@pytest.mark.parametrize("sweeping", [10], indirect=True)
def test_a_change_after_a_quiet_time_is_seen_at_once(sweeping: Sweeping) -> None:
    sweeping.tick(100)
    before = sweeping.begun
    sweeping.make_again()
    sweeping.tick(5)
    assert sweeping.begun == before + 1


class Host:
    """A host with one process whose descriptors are the inodes of its sockets; `priorities` are by inode, too."""

    def __init__(self, priorities: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.priorities = priorities
        self.slot_of_inode: dict[int, int] = {}
        self.listed_in_full = False
        self.passed_meanwhile: dict[int, int] = {}
        self.cpu_s = 0.0
        monkeypatch.setattr(reclassify, "owned_sockets", self.sockets)
        monkeypatch.setattr(reclassify, "priority_of", lambda sock: self.priorities[sock.inode])
        monkeypatch.setattr(psutil, "pids", lambda: [1])
        self.earlier = Reclassifier(
            mount=None,
            mark=lambda sock, *, minor, dscp: self.priorities.update({sock.inode: classid(minor)}),
            remember=lambda *_: pytest.fail("what a listener accepts has no leaf"),
            close=lambda *_, **__: None,
            log=open_log(),
            slot_of_inode=lambda: self.slot_of_inode,
            sockets_of=lambda _: iter([(inode, inode) for inode in self.priorities]),
            duplicate=self.duplicate,
            cpu_clock=lambda: self.cpu_s,
        )

    def sockets(self, protocol: int, *, cgroups: object = None) -> Iterator[list[OwnedSocket]]:
        if protocol == socket.IPPROTO_UDP:
            self.listed_in_full = cgroups is None
            yield [OwnedSocket(True, 1, one, one, at, 1) for one, at in self.priorities.items()]
            self.slot_of_inode = {**self.slot_of_inode, **self.passed_meanwhile}

    def duplicate(self, _: int, inode: int, **__: object) -> AbstractContextManager[Any]:
        self.cpu_s += DUPLICATE_S
        return nullcontext(SimpleNamespace(inode=inode))

    def sweep(self) -> None:
        self.earlier.look(lambda: [], classified=True, now_s=0.0)


OWN, LEFT, ELSEWHERE = 1, 2, 3


def test_a_socket_whose_job_has_ended_leaves_the_leaf_of_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = classid(JOB_MINOR[0]), classid(JOB_MINOR[1])
    host = Host({OWN: first, LEFT: first, ELSEWHERE: second}, monkeypatch)
    host.sweep()
    assert host.priorities == {OWN: first, LEFT: first, ELSEWHERE: second}, "no job has a leaf: nobody minds"
    host.slot_of_inode = {OWN: 0}
    host.sweep()
    assert host.listed_in_full
    assert host.priorities == {OWN: first, **dict.fromkeys((LEFT, ELSEWHERE), classid(LEAF_MINOR["compute"]))}
    assert host.earlier.alarm() is None


def test_a_socket_that_is_passed_during_the_sweep_keeps_its_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    first = classid(JOB_MINOR[0])
    host = Host({OWN: first, LEFT: first}, monkeypatch)
    host.slot_of_inode, host.passed_meanwhile = {OWN: 0}, {LEFT: 0}
    host.sweep()
    assert host.priorities == {OWN: first, LEFT: first}


def test_a_tick_takes_as_many_of_a_thousand_sockets_as_its_slice_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(dict.fromkeys(range(1, 1001), classid(JOB_MINOR[0])), monkeypatch)
    host.slot_of_inode = {OWN: 0}
    host.sweep()
    assert 0 < host.cpu_s <= HASTENED_SLICE_S + DUPLICATE_S
