"""Files that are written whole: nothing else in their directory is touched."""

from __future__ import annotations

import os
from pathlib import Path

from hive_qos.files import write_whole


def test_drafts_that_lie_beside_a_file_stay(tmp_path: Path) -> None:
    drafts = ("broker.new", "broker.toml.new", "broker.toml.former.new")
    for name in drafts:
        (tmp_path / name).write_text(name, encoding="utf-8")
    for name in ("broker.toml", "broker.toml.former"):
        write_whole(tmp_path / name, "text")
    assert all((tmp_path / name).read_text(encoding="utf-8") == name for name in drafts)
    assert sorted(os.listdir(tmp_path)) == sorted((*drafts, "broker.toml", "broker.toml.former"))
