"""The candidate that `hive-qos apply` lays beside the broker's file, and the way back from every moment of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.cli.changing import apply_command
from broker.cli.changing.apply_command import _offer
from broker.daemon.config_file import candidate_place, former_place
from hive_qos.files import write_whole


def test_ctrl_c_right_after_the_candidate_is_written_leaves_the_file_and_no_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "broker.toml"
    place.write_text("former", encoding="utf-8")

    def write(path: Path, text: str, *, mode: int) -> None:
        write_whole(path, text, mode=mode)
        if text == "new":
            raise KeyboardInterrupt

    monkeypatch.setattr(apply_command, "write_whole", write)
    with pytest.raises(KeyboardInterrupt):
        _offer(place, "new")
    assert place.read_text(encoding="utf-8") == "former"
    assert os.listdir(tmp_path) == ["broker.toml"]


def test_the_candidate_gets_the_owner_the_group_and_the_rights_of_the_file_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid, **_: given.update({Path(path).name: (uid, gid)}))
    place, link = tmp_path / "broker.toml", tmp_path / "link.toml"
    place.write_text("former", encoding="utf-8")
    place.chmod(0o640)
    link.symlink_to(place)
    _offer(link, "new")
    candidate, former = candidate_place(place), candidate_place(former_place(place))
    assert [one.read_text(encoding="utf-8") for one in (candidate, former, place)] == ["new", "former", "former"]
    owner = tmp_path.stat().st_uid, place.stat().st_gid
    assert given == {candidate.name: owner, former.name: owner}
    for one in (candidate, former):
        assert stat.S_IMODE(one.stat().st_mode) == 0o640
