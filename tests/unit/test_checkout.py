"""Which sources a run used, as git tells it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.checkout import COMMIT_DIGITS, Checkout, read_checkout


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=Nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *author, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("out/\n")
    (tmp_path / "file").write_text("first\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_a_clean_checkout_has_its_commit(repository: Path) -> None:
    (repository / "out").mkdir()
    (repository / "out" / "report").write_text("what git ignores is no change\n")
    found = read_checkout(repository)
    assert found == Checkout(commit=git(repository, "rev-parse", "HEAD")[:COMMIT_DIGITS], dirty=False)


@pytest.mark.parametrize("name", ["file", "new"])
def test_a_changed_file_and_one_that_git_does_not_know_make_it_dirty(repository: Path, name: str) -> None:
    (repository / name).write_text("second\n")
    found = read_checkout(repository)
    assert found.dirty
    assert str(found).endswith("with uncommitted changes")


def test_without_a_commit_nothing_is_known(tmp_path: Path) -> None:
    assert read_checkout(tmp_path) == Checkout(commit=None, dirty=False)
    git(tmp_path, "init", "--quiet")
    assert str(read_checkout(tmp_path)) == "an unknown commit"


def test_a_record_gives_back_the_checkout_that_it_was_made_from() -> None:
    checkout = Checkout(commit="0123456789ab", dirty=True)
    assert Checkout.from_record({"python": "3.11", **checkout.as_record()}) == checkout
    assert Checkout.from_record({}) == Checkout(commit=None, dirty=False)
