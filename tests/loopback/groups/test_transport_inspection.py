"""`hive-qos job` asks any rank of a host for its whole group, over the group's own connections."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until
from typer.testing import CliRunner

from broker.cli.app import app
from hive_qos.errors import PeerError
from transport import Group, MemoryRendezvous, Settings
from transport.inspection import jobs
from transport.inspection.member_socket import MemberSocket

LOCAL = Settings(listen="127.0.0.1", broker="off", engine="aioquic", job="llm", job_secret=b"secret of the test")

SOCKETS = jobs.sockets


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of this test's own, with a name longer than a socket's address may be."""
    base = tmp_path / ("long" * 20)
    base.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setattr(jobs, "sockets", lambda: iter(sorted((base / "hive-qos/jobs").glob("*.sock"))))
    return base / "hive-qos" / "jobs"


@pytest.fixture
def ranks() -> Iterator[list[Group]]:
    store = MemoryRendezvous()
    with ThreadPoolExecutor(3) as pool:
        groups = list(
            pool.map(lambda rank: Group.connect(store, rank=rank, world_size=3, settings=LOCAL), range(3))
        )  # fmt: skip
        yield groups
        list(pool.map(Group.close, groups))


def test_any_rank_tells_of_all_with_who_waits_for_whom(ranks: list[Group], folder: Path) -> None:
    tensors = [np.ones(100_000, np.float32) for _ in ranks]
    works = [group.allreduce(tensor, compression="int8") for group, tensor in zip(ranks, tensors, strict=True)]
    for work in works:
        work.wait()
    works = [group.allreduce(tensor) for group, tensor in zip(ranks[:2], tensors, strict=False)]
    for path in sorted(folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = wait_until(lambda path=path: _all_wait(jobs.ask(path, jobs.GROUP)))
        assert found["silent"] == []
        assert {one["rank"]: one["groups"][0]["called"] for one in found["members"]} == {0: 2, 1: 2, 2: 1}
        for one in found["members"]:
            assert [link["rank"] for link in one["links"]] == [rank for rank in range(3) if rank != one["rank"]]
            assert all(link["rtt_s"] > 0 for link in one["links"])
            # Two thirds of 400 kB, sent to be added and back, in a byte and a bit a value instead of four.
            assert 350_000 < one["saved_bytes"] < 400_000
    explained = CliRunner().invoke(app, ["explain-collective", "--job", "llm"]).output
    assert "group default, rank " in explained
    assert "all_reduce of 390.6 KiB as int8, 1 times" in explained
    no_such = CliRunner().invoke(app, ["explain-collective", "--job", "other"])
    assert (no_such.exit_code, "answers on this host; use one of llm" in no_such.output) == (3, True)
    wait_until(lambda: "it has not begun that" in " ".join(CliRunner().invoke(app, ["job"]).output.split()))
    ranks[2].allreduce(tensors[2]).wait()
    for work in works:
        work.wait()


def _all_wait(found: dict[str, Any]) -> dict[str, Any]:
    """The document, or nothing before those who have called wait for the third, and all have measured their links."""
    members = {one["rank"]: one for one in found["members"]}
    waiting = {rank for rank, one in members.items() for wait in one["waits"] if 2 in wait["for"]}
    measured = all(len(one["links"]) == 2 for one in members.values())
    return found if measured and waiting & {0, 1} and not members[2]["waits"] else {}


def test_a_rank_that_does_not_answer_in_time_is_named(ranks: list[Group], folder: Path) -> None:
    goes_on = threading.Event()

    def stand_still() -> None:
        goes_on.wait()

    ranks[1]._runtime._loop.call(stand_still)  # as a rank that is stopped, or swaps
    try:
        found = jobs.ask(next(iter(sorted(folder.iterdir()))), jobs.GROUP, limit_s=0.5)
        assert [one["rank"] for one in found["members"]] == [0, 2]
        assert found["silent"] == [{"rank": 1, "why": "it did not answer within 0.5 s"}]
    finally:
        goes_on.set()
    ranks[2].close()
    assert len(list(folder.iterdir())) == 2
    path = next(iter(sorted(folder.iterdir())))
    wait_until(lambda: [one["rank"] for one in jobs.ask(path, jobs.GROUP)["silent"]] == [2])


def test_two_runs_of_one_name_are_two_groups_and_closed_ones_are_gone(folder: Path) -> None:
    def lone() -> Group:
        return Group.connect(MemoryRendezvous(), rank=0, world_size=1, settings=LOCAL)

    with lone(), lone():
        document = json.loads(CliRunner().invoke(app, ["job", "llm", "--json"]).output)
        assert [len(group["members"]) for group in document["groups"]] == [1, 1]
    with Group.connect(MemoryRendezvous(), rank=0, world_size=1, settings=replace(LOCAL, inspect=False)):
        assert list(folder.iterdir()) == []


def test_sockets_of_killed_processes_are_swept_and_strange_questions_are_not_answered(folder: Path) -> None:
    folder.mkdir(parents=True)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with jobs.reachable(folder / "dead.sock") as name:
        dead.bind(name)
    dead.close()
    living = MemberSocket(job="a/../b", name="\x00é", answer=lambda want, limit_s: {"want": want, "limit_s": limit_s})
    try:
        assert living.path is not None
        assert list(folder.iterdir()) == [living.path]
        for question in (b"", b"\n", b"[]\n", b"\xff\xfe\n", b'{"want": 7, "limit_s": "x"}\n', b"[" * 1000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, jobs.reachable(living.path) as name:
                sock.settimeout(30.0)
                sock.connect(name)
                sock.sendall(question)
                sock.shutdown(socket.SHUT_WR)
                assert (b"limit_s" in sock.recv(1000)) == (b"want" in question)
        assert jobs.ask(living.path, jobs.GROUP, limit_s=1e9 - 1.0) == {"want": "group", "limit_s": 30.0}
    finally:
        living.close()
    living.close()
    assert list(folder.iterdir()) == []


def test_what_answers_without_being_a_member_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        with jobs.reachable(folder / "other.sock") as name:
            sock.bind(name)
        sock.listen(1)

        def answer() -> None:
            with sock.accept()[0] as one:
                one.recv(100)
                one.sendall(b"[1]")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError, match="no document of a member"):
            jobs.ask(folder / "other.sock")
        thread.join(30.0)


def test_one_that_never_ends_its_answer_keeps_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OWN_S", 0.5)
    folder.mkdir(parents=True)
    given_up = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        with jobs.reachable(folder / "slow.sock") as name:
            sock.bind(name)
        sock.listen(1)

        def drip() -> None:
            with sock.accept()[0] as one, contextlib.suppress(OSError):
                while not given_up.wait(0.1):
                    one.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                jobs.ask(folder / "slow.sock", limit_s=0.5)
        finally:
            given_up.set()
            thread.join(30.0)


def test_a_rank_whose_thread_stands_is_told_of_by_itself_and_not_as_a_group_of_its_own(ranks: list[Group]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stand() -> None:
        begun.set()
        go_on.wait(60.0)

    ranks[1]._runtime._loop.call(stand)
    assert begun.wait(30.0)
    try:
        alone = ranks[1].survey(limit_s=0.1)
        assert alone["members"] == []
        assert alone["silent"] == [{"rank": 1, "why": "its transport's thread does not answer"}]
        document = json.loads(CliRunner().invoke(app, ["job", "llm", "--json", "--limit", "0.5"]).output)
    finally:
        go_on.set()
    (group,) = document["groups"]
    assert sorted(one["rank"] for one in group["members"]) == [0, 2]
    assert [one["rank"] for one in group["silent"]] == [1]


def test_a_folder_that_others_can_write_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(jobs, "own_folders", lambda: [open_to_all / "hive-qos" / "jobs"])
    with pytest.raises(FileNotFoundError):
        jobs.make_folder()
    assert MemberSocket(job="a", name="b", answer=lambda want, limit_s: {}).path is None
    assert os.listdir(open_to_all) == []
    monkeypatch.setattr(jobs, "own_folders", lambda: [open_to_all])
    (open_to_all / "forged.sock").touch()
    assert "forged.sock" not in {one.name for one in SOCKETS()}
    open_to_all.chmod(0o700)
    assert "forged.sock" in {one.name for one in SOCKETS()}
