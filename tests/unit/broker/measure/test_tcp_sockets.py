"""Few connections are all looked at, of many those that matter and those that bring most; and never for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from broker.enforce.socket_marks import CLASS_OF_PRIORITY
from broker.events.log import open_log
from broker.measure import sockets
from broker.measure.budget import CpuBudget
from broker.measure.flow_table import FlowTable
from broker.measure.port_classes import PortClasses
from broker.measure.sockets import ALL_MAX, ASKED_MAX, BRINGING_MAX, FOLLOWED_MAX, LIST_S, TcpWatch
from broker.measure.tcp_diag import TcpConnection
from broker.policy.toml import load

MATCHING = PortClasses(
    load(
        'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n[class.storage]\nmatch = [{ port = 873 }]\n'
    ),
    CLASS_OF_PRIORITY,
)


def connection(number: int, *, port: int = 873, acked: int = 0, received: int = 0, waiting: int = 0) -> TcpConnection:
    return TcpConnection(
        local=("10.0.0.1", 1000 + number), remote=("10.0.0.2", port), uid=0, inode=number, classid=0, dscp=0,
        rtt_s=0.01, rtt_s_min=None, acked_bytes=acked, received_bytes=received, sent_segments=0,
        retransmitted_segments=0, delivery_rate_bits_per_s=0, application_limited=False,
        waiting_bytes=waiting, question=number.to_bytes(4, "big"),
    )  # fmt: skip


class Kernel:
    """What there is, and what was asked for."""

    def __init__(self, connections: Sequence[TcpConnection]) -> None:
        self.connections, self.asked, self.lists, self.questions = connections, set[int](), 0, 0

    def pages(self, *, clock: Callable[[], float]) -> Iterator[list[TcpConnection]]:
        self.lists += 1
        for start in range(0, len(self.connections), 60):
            yield [one._replace(at_s=clock()) for one in self.connections[start : start + 60]]

    def single(self, chosen: Sequence[TcpConnection], *, clock: Callable[[], float]) -> Iterator[list[TcpConnection]]:
        self.asked = {one.inode for one in chosen}
        self.questions += 1
        yield [one._replace(at_s=clock()) for one in chosen]


def watched(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *, seconds: float = 2.0) -> FlowTable:
    monkeypatch.setattr(sockets, "tcp_pages", kernel.pages)
    monkeypatch.setattr(sockets, "tcp_asked", kernel.single)
    now_s = [0.0]
    watch, flows = TcpWatch(log=open_log(), clock=lambda: now_s[0]), FlowTable()
    while now_s[0] < seconds:
        watch.look(flows, matching=MATCHING, now_s=now_s[0])
        now_s[0] += 0.1
    return flows


def test_of_few_connections_all_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([connection(number) for number in range(ALL_MAX)])
    flows = watched(monkeypatch, kernel)
    assert flows.tcp_count == len(flows.tcp_connections()) == ALL_MAX
    assert not kernel.asked


def test_a_handful_are_asked_for_by_themselves_at_every_tick_and_listed_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list is a walk through all of the kernel's table, however few there are."""
    kernel = Kernel([connection(number) for number in range(4)])
    flows = watched(monkeypatch, kernel, seconds=10 * LIST_S)
    assert kernel.asked == set(range(4))
    assert kernel.lists <= 11 < kernel.questions
    assert len(flows.tcp_connections()) == 4


@pytest.fixture
def no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks cost nothing, so that their least intervals alone count."""
    monkeypatch.setattr(sockets, "CpuBudget", partial(CpuBudget, cpu_clock=lambda: 0.0))


@pytest.mark.usefixtures("no_cost")
def test_those_that_are_too_many_to_be_asked_singly_are_listed_as_often_as_a_handful_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their round trips are what delay is told by: every half second is the worst interval for that."""
    for count in (ASKED_MAX, ASKED_MAX + 1, 190):
        kernel = Kernel([connection(number) for number in range(count)])
        watched(monkeypatch, kernel, seconds=10 * LIST_S)
        assert 45 <= kernel.lists + kernel.questions <= 51
        assert (kernel.questions == 0) == (count > ASKED_MAX)
        assert kernel.lists <= 11 or count > ASKED_MAX


@pytest.mark.usefixtures("no_cost")
def test_where_there_are_none_the_kernels_table_is_walked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([])
    assert not FlowTable().tcp_whole, "nobody has looked yet"
    assert watched(monkeypatch, kernel, seconds=10 * LIST_S).tcp_whole
    assert 9 <= kernel.lists <= 11
    assert not kernel.questions


@pytest.mark.usefixtures("no_cost")
def test_a_handful_is_listed_sooner_where_that_is_hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([connection(0)])
    monkeypatch.setattr(sockets, "tcp_pages", kernel.pages)
    watch, flows = TcpWatch(log=open_log(), clock=lambda: 0.0), FlowTable()
    for tick in range(4):
        watch.hasten()
        watch.look(flows, matching=MATCHING, now_s=tick * LIST_S / 5)
    assert kernel.lists == 4


def test_a_new_one_of_a_handful_is_seen_with_the_next_list(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([connection(number) for number in range(3)])
    monkeypatch.setattr(sockets, "tcp_pages", kernel.pages)
    monkeypatch.setattr(sockets, "tcp_asked", kernel.single)
    watch, flows = TcpWatch(log=open_log(), clock=lambda: 0.0), FlowTable()
    for tick in range(8):
        watch.look(flows, matching=MATCHING, now_s=tick * LIST_S / 4)
        if not tick:
            kernel.connections = [*kernel.connections, connection(3)]
    assert len(flows.tcp_connections()) == flows.tcp_count == 4


def test_of_many_those_that_matter_are_followed_and_those_that_bring_most(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [connection(number, port=22, acked=10**9, received=1) for number in range(1000, 1800)]
    silent = [connection(number, acked=number) for number in range(200)]
    sending = [connection(number, waiting=5000) for number in range(200, 210)]
    bringing = [connection(number, port=22, received=10**6 + number) for number in range(300, 300 + BRINGING_MAX)]
    kernel = Kernel([*others, *silent, *bringing, *sending])
    flows = watched(monkeypatch, kernel)
    assert flows.tcp_count == len(kernel.connections)
    followed = kernel.asked
    assert len(followed) == FOLLOWED_MAX == len(flows.tcp_connections())
    assert {one.inode for one in (*sending, *bringing)} <= followed
    first = sorted(silent, key=lambda one: -one.acked_bytes)[: FOLLOWED_MAX - len(sending) - len(bringing)]
    assert {one.inode for one in first} <= followed


def test_a_list_of_very_many_is_cut_on_the_way_and_keeps_whom_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([connection(number, waiting=int(number == 7)) for number in range(20 * ALL_MAX)])
    flows = watched(monkeypatch, kernel, seconds=5.0)
    assert flows.tcp_count == len(kernel.connections)
    assert 7 in {one.inode for one, _ in flows.tcp_connections()}
