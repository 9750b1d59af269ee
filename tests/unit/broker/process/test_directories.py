"""Directories in which others could put things are refused, and listeners that are nobody's to trust."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from broker.client import trust
from broker.client.protocol import MessageError
from broker.process.locks import directory
from hive_qos.errors import ConfigurationError
from shaping.journal import Journal
from shaping.model.observations import PriorQdisc


def test_a_directory_is_made_with_its_mode_and_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        directory(str(tmp_path / "a/b"), key="k", mode=0o700)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o757])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(ConfigurationError, match="others may write there"):
        directory(str(tmp_path / "open"), key="k", mode=0o755)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigurationError, match="is no directory"):
        directory(str(tmp_path / "link"), key="k", mode=0o755)


def test_somebody_elses_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    found = os.stat_result((0o40755, 1, 1, 1, owner + 1000, 0, 0, 0, 0, 0))
    monkeypatch.setattr("broker.process.locks.os.lstat", lambda path: found)
    with pytest.raises(ConfigurationError, match=f"belongs to user {owner + 1000}"):
        directory(str(tmp_path), key="k", mode=0o755)


def test_the_journal_does_not_write_where_a_link_points(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "state").mkdir()
    (tmp_path / "state/.qdisc-eth0.json.new").symlink_to(victim)
    journal = Journal(tmp_path / "state")
    journal.write("eth0", PriorQdisc(kind="default", handle_major=0))
    assert victim.read_text() == "mine"
    assert journal.read("eth0") == PriorQdisc(kind="default", handle_major=0)


class Listener:
    """A connected socket whose other end the kernel says to be a user's."""

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.pack("=iII", 1, self.uid, self.uid)


def test_root_and_our_own_user_are_trusted_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for uid in (0, 1000):
        trust.check_server(Listener(uid))  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="user 1001 listens there"):
        trust.check_server(Listener(1001))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uid_map", "uid", "outsider"),
    [
        ("0 0 4294967295", 65534, False),
        ("0 1000 1", 65534, True),
        ("0 1000 1", 1001, False),
        ("0 100000 65536", 65534, False),
    ],
)
def test_the_overflow_user_is_somebody_outside_only_where_no_user_can_have_his_number(
    tmp_path: Path, uid_map: str, uid: int, outsider: bool
) -> None:
    (tmp_path / "map").write_text(uid_map + "\n")
    (tmp_path / "overflow").write_text("65534\n")
    places = {"uid_map": str(tmp_path / "map"), "overflow_uid": str(tmp_path / "overflow")}
    assert trust.is_outsider(uid, **places) is outsider
