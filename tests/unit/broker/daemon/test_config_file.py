"""A configuration is read whole or not at all, whoever writes it meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from broker.daemon.config_file import FILE_BYTES_MAX, read_file
from broker.policy.toml import load
from hive_qos.errors import ConfigurationError

HALF = 'version = 1\n[[interface]]\nname = "eth0"\n'
REST = '[class.storage]\nceiling = "10 %"\n'


def test_half_a_file_is_refused_although_it_is_good_toml_and_the_whole_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    with open(path, "w") as writer:
        writer.write(HALF)
        writer.flush()
        assert load(path.read_text()).interfaces, "nothing in the text itself says that more is to come"
        with pytest.raises(ConfigurationError, match="somebody is writing it"):
            read_file(path)
        writer.write(REST)
    assert read_file(path) == HALF + REST


def test_nobody_waits_for_who_has_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(HALF)
    read_file(path)
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # EWOULDBLOCK while there is a lease


def test_who_writes_while_it_is_read_harms_neither(tmp_path: Path) -> None:
    path, texts = tmp_path / "broker.toml", (HALF, HALF + REST)
    path.write_text(texts[0])
    done = threading.Event()

    def write() -> None:
        for number in range(500):
            path.write_text(texts[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    while not done.is_set() or not taken:
        with contextlib.suppress(ConfigurationError):  # it is being written
            assert read_file(path) in texts
            taken += 1
    writer.join()


def test_where_there_are_no_leases_it_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = fcntl.fcntl

    def without(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "as NFS says")
        return ask(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", without)
    path = tmp_path / "broker.toml"
    path.write_text(HALF)
    assert read_file(path) == HALF


def test_what_is_no_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    for content, words in (
        (b"x" * (FILE_BYTES_MAX + 1), "longer than"),
        (b"\xff", "not UTF-8"),
        (None, "cannot be read"),
    ):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=words):
            read_file(path)
