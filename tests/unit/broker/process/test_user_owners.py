"""Subordinate users count as their owner; what is no range, or root's, gives nobody anything."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from broker.process.rights import UserOwners

NOBODY = pwd.getpwnam("nobody").pw_uid


def owners(folder: Path, text: str) -> UserOwners:
    (folder / "subuid").write_text(text)
    return UserOwners(folder / "subuid")


def test_a_uid_of_a_range_is_its_owner_s_by_name_or_number_and_others_are_their_own(tmp_path: Path) -> None:
    found = owners(tmp_path, "nobody:100000:65536\n4711:300000:10\n")
    assert [found.owner_of(uid) for uid in (100_000, 165_535, 300_009)] == [NOBODY, NOBODY, 4711]
    assert [found.owner_of(uid) for uid in (0, 1000, 99_999, 165_536, 300_010)] == [0, 1000, 99_999, 165_536, 300_010]


@pytest.mark.parametrize("owner", ["root", "0", "nobody-has-this-name", str(os.geteuid())])
def test_a_range_whose_owner_has_rights_or_is_unknown_is_one_user_without_them(tmp_path: Path, owner: str) -> None:
    found = owners(tmp_path, f"{owner}:100000:65536\n")
    assert {found.owner_of(uid) for uid in (100_000, 100_001, 165_535)} == {100_000}


@pytest.mark.parametrize(
    "line",
    [
        "", "nobody", "nobody:1000", "nobody:x:5", "nobody:1000:5:6", ":1000:5", "nobody:-1:5000", "nobody:0:5000",
        "nobody:1:" + "9" * 5000, "nobody:²:5000", "\x00nobo\udcffdy:1000:5",
    ],
)  # fmt: skip
def test_what_is_no_range_is_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "subuid").write_text(f"{line}\nnobody:2000:5\n", errors="surrogateescape")
    found = UserOwners(tmp_path / "subuid")
    assert found.owner_of(0) == 0
    assert found.owner_of(1000) == 1000
    assert found.owner_of(2004) == NOBODY


def test_a_file_that_comes_changes_and_goes_is_read_again(tmp_path: Path) -> None:
    found = UserOwners(tmp_path / "subuid")
    assert found.owner_of(5000) == 5000
    (tmp_path / "subuid").write_text("nobody:5000:1\n")
    assert found.owner_of(5000) == NOBODY
    (tmp_path / "new").write_text("nobody:5001:1\n")
    (tmp_path / "new").rename(tmp_path / "subuid")
    assert [found.owner_of(uid) for uid in (5000, 5001)] == [5000, NOBODY]
    (tmp_path / "subuid").unlink()
    assert found.owner_of(5001) == 5001
