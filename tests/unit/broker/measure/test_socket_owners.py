"""Whose a connection is, is found by walking through processes: seldom, though which connections are shown changes."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from broker.measure import socket_owners
from broker.measure.socket_owners import HOLDERS_MAX, LIFE_S, WALK_S, SocketOwners
from broker.measure.tcp_diag import TcpConnection

SOCKETS = 40


class Host:
    """Processes with a command and sockets each; counts how many were walked through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.walked: list[int] = []
        self.sockets: dict[int, list[int]] = {}
        self._commands: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.origins = SocketOwners(None, sockets_of=self._sockets_of)
        monkeypatch.setattr(psutil, "pids", lambda: sorted(self.sockets))
        monkeypatch.setattr(socket_owners, "_comm", lambda pid: self._commands[pid])
        monkeypatch.setattr(socket_owners, "parent_of", self.parents.get)
        self._now_s = 0.0

    def start(self, pid: int, command: str, sockets: range) -> None:
        self._commands[pid] = command
        self.sockets[pid] = list(sockets)

    def _sockets_of(self, pid: int) -> Iterator[tuple[int, int]]:
        self.walked.append(pid)
        yield from enumerate(self.sockets[pid])

    def commands_of(self, *inodes: int, for_s: float = 10 * WALK_S) -> list[str | None]:
        """What is known of these after they have been shown for so long, looked at ten times a second."""
        entries = [(connection(inode), "storage") for inode in inodes]
        for _ in range(round(10 * for_s)):
            self._now_s += 0.1
            known = self.origins.look(tuple(entries), now_s=self._now_s)
        return [known[inode].command for inode in inodes]


def connection(inode: int) -> TcpConnection:
    return TcpConnection(
        ("10.0.0.1", 1), ("10.0.0.2", 2), uid=0, inode=inode, classid=0, dscp=0, rtt_s=0.01, rtt_s_min=None,
        acked_bytes=1, received_bytes=1, sent_segments=1, retransmitted_segments=0, delivery_rate_bits_per_s=8,
        application_limited=False,
    )  # fmt: skip


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(monkeypatch)
    made.start(5, "storage", range(100, 100 + SOCKETS))
    made.start(6, "trainer", range(500, 510))
    return made


def test_another_connection_of_a_known_process_needs_no_walk(host: Host) -> None:
    assert host.commands_of(100, 101) == ["storage", "storage"]
    host.walked.clear()
    for first in range(102, 130, 2):
        assert host.commands_of(first, first + 1, for_s=0.1) == ["storage", "storage"]
    assert host.walked == []


def test_a_connection_that_came_after_the_walk_is_looked_for(host: Host) -> None:
    assert host.commands_of(100) == ["storage"]
    host.sockets[5].append(900)
    assert host.commands_of(100, 900) == ["storage", "storage"]
    assert host.commands_of(505, 900) == ["trainer", "storage"]


def test_a_socket_that_changed_hands_has_its_new_process_in_time(host: Host) -> None:
    assert host.commands_of(100, 101) == ["storage", "storage"]
    host.sockets[5].remove(101)
    host.sockets[6].append(101)
    assert host.commands_of(101, for_s=LIFE_S + 2 * WALK_S) == ["trainer"]


def test_sockets_that_a_child_inherits_stay_the_parents(host: Host) -> None:
    host.start(7, "parent", range(900, 901))
    host.start(8, "child", range(900, 902))
    host.start(9, "grandchild", range(900, 902))
    host.parents |= {8: 7, 9: 8, 7: 1}
    host.start(1, "init", range(0))
    assert host.commands_of(900, 901) == ["parent", "child"]


def test_of_processes_that_nothing_is_known_of_the_newest_are_looked_into_first(host: Host) -> None:
    for pid in range(10, 1000):
        host.start(pid, "idle", range(0))
    host.start(1000, "new", range(900, 901))
    host.start(1001, "newer", range(901, 902))
    assert host.commands_of(900, for_s=WALK_S) == ["new"]
    assert host.walked == [1001, 1000]


def test_one_that_nobody_holds_is_looked_for_once_in_a_while(host: Host) -> None:
    assert host.commands_of(77, for_s=LIFE_S / 2) == [None]
    assert sorted(host.walked) == [5, 6]


def test_what_is_remembered_is_bounded_and_what_is_shown_is_among_it(host: Host) -> None:
    host.start(7, "server", range(10_000, 10_000 + 3 * HOLDERS_MAX))
    shown = (10_000 + 2 * HOLDERS_MAX, 100, 505)
    assert host.commands_of(*shown) == ["server", "storage", "trainer"]
    assert len(host.origins._holders) <= HOLDERS_MAX + len(shown)
    assert host.commands_of(10_000 + 3 * HOLDERS_MAX - 1) == ["server"]
    host.commands_of(100, for_s=2 * LIFE_S)
    assert host.commands_of(101, 777) == ["storage", None]
    assert len(host.origins._holders) <= SOCKETS + 1, "what nobody asked for since is forgotten with its time"
