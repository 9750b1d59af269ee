"""The file that `hive-qos apply` installs, and the way back from every moment of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.cli.changing import apply_command
from broker.cli.changing.apply_command import _Install
from hive_qos.files import write_whole


def test_ctrl_c_right_after_the_new_file_is_written_brings_the_former_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "broker.toml"
    place.write_text("former", encoding="utf-8")

    def write(path: Path, text: str, *, mode: int) -> None:
        write_whole(path, text, mode=mode)
        if text == "new":
            raise KeyboardInterrupt

    monkeypatch.setattr(apply_command, "write_whole", write)
    with pytest.raises(KeyboardInterrupt), _Install(place, "new"):
        pass
    assert place.read_text(encoding="utf-8") == "former"


def test_the_file_keeps_its_owner_its_group_and_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid, **_: given.update({Path(path).name: (uid, gid)}))
    place = tmp_path / "broker.toml"
    place.write_text("former", encoding="utf-8")
    place.chmod(0o640)
    with _Install(place, "new") as install:
        install.kept = True
    assert place.read_text(encoding="utf-8") == "new"
    owner = tmp_path.stat().st_uid, place.stat().st_gid
    assert given == {"broker.toml": owner, "broker.toml.former": owner}
    for name in given:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
